// ChildProcess: a program that this process has started, watched by a descriptor.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "core/base/unique_fd.h"
#include "fastllm/status.h"

namespace fastllm::runtime {

// The descriptor that a started program finds its end of the socket at.
inline constexpr int kChildSocket = 3;

class ChildProcess {
 public:
  // Starts command[0], looked for in PATH, with a socket to this process as descriptor 3 and no others but the standard
  // ones, no signal blocked. kUnavailable with the program's name. The child asks for its end with its parent's
  // (PR_SET_PDEATHSIG), which means the thread that calls this: it must live as long as the child.
  static Result<ChildProcess> Start(const std::vector<std::string>& command);

  ChildProcess(ChildProcess&&) noexcept = default;
  ChildProcess& operator=(ChildProcess&&) noexcept = default;

  pid_t pid() const { return pid_; }
  int socket() const { return socket_.get(); }
  // Readable when the process has ended.
  int end_fd() const { return end_.get(); }
  void Kill() const;
  // After its end: "was killed by signal 9 (Killed)" or "exited with status 1". Once.
  std::string Reap();

 private:
  ChildProcess() = default;
  pid_t pid_ = -1;
  UniqueFd socket_;
  UniqueFd end_;
};

}  // namespace fastllm::runtime
