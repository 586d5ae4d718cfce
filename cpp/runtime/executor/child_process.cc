#include "runtime/executor/child_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace fastllm::runtime {
namespace {

Status Failed(const std::string& program, int error) {
  return Status::Unavailable("cannot start " + program + ": " + std::strerror(error));
}

// posix_spawnp() with the socket as descriptor 3, no further ones, and signals as a new program expects them.
int Spawn(const std::vector<std::string>& command, int socket, pid_t* pid) {
  std::vector<char*> words;
  words.reserve(command.size() + 1);
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, socket, kChildSocket);
  posix_spawn_file_actions_addclosefrom_np(&files, kChildSocket + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const int error = posix_spawnp(pid, words[0], &files, &attributes, words.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return error;
}

}  // namespace

Result<ChildProcess> ChildProcess::Start(const std::vector<std::string>& command) {
  if (command.empty()) return Status::InvalidArgument("the command of a rank's process is empty");
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return Failed(command[0], errno);
  ChildProcess child;
  child.socket_ = UniqueFd(pair[0]);
  const UniqueFd theirs(pair[1]);
  if (const int error = Spawn(command, theirs.get(), &child.pid_); error != 0) return Failed(command[0], error);
  child.end_ = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, child.pid_, 0)));
  if (child.end_.get() >= 0) return child;
  const int error = errno;
  child.Kill();
  child.Reap();
  return Failed(command[0], error);
}

void ChildProcess::Kill() const { kill(pid_, SIGKILL); }

std::string ChildProcess::Reap() {
  int status = 0;
  pid_t got = 0;
  while ((got = waitpid(pid_, &status, 0)) < 0 && errno == EINTR) {
  }
  if (got != pid_) return "ended";  // who collects the children of this process has it
  if (!WIFSIGNALED(status)) return "exited with status " + std::to_string(WEXITSTATUS(status));
  const int signal = WTERMSIG(status);
  return "was killed by signal " + std::to_string(signal) + " (" + strsignal(signal) + ")";
}

}  // namespace fastllm::runtime
