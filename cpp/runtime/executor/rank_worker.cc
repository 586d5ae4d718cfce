#include "runtime/executor/rank_worker.h"

#include <poll.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string_view>
#include <thread>
#include <utility>

#include "runtime/executor/rank_messages.h"

namespace fastllm::runtime {
namespace {

// The driver sends nothing more: what can be read is the end of the socket.
void EndWith(int socket) {
  pthread_setname_np(pthread_self(), "fastllm-watch");
  pollfd watched{socket, POLLIN, 0};
  while (poll(&watched, 1, -1) < 0 && errno == EINTR) {
  }
  _exit(1);
}

class RankWorker {
 public:
  RankWorker(const RankJob& job, SharedMemory memory, const RankWorkerOptions& options)
      : job_(job), options_(options), memory_(std::move(memory), job.memory, job.member()) {}

  // Whether the driver has ended it; false: it has failed.
  bool Run() {
    Status status;
    try {
      status = Live();
    } catch (const std::exception& e) {
      status = Status::Internal(e.what());
    } catch (...) {
      status = Status::Internal("an exception of unknown type");
    }
    if (status.ok()) return true;
    RankReport last;
    last.kind = RankReport::Kind::kStep;
    last.result.status = status;
    static_cast<void>(Send(last));
    return false;
  }

 private:
  Status Live() {
    RankReport loaded;
    Ranks ranks = memory_.MakeRanks();
    if (options_.join_groups) FASTLLM_RETURN_IF_ERROR(options_.join_groups(job_, &ranks));
    FASTLLM_ASSIGN_OR_RETURN(auto runner, options_.make_runner(job_, ranks, &loaded.phases));
    FASTLLM_RETURN_IF_ERROR(Send(loaded));
    const bool learns = !ranks.topology.last_stage();
    std::string bytes;
    RankReport report;
    report.kind = RankReport::Kind::kStep;
    PendingStep step;
    for (;;) {
      FASTLLM_RETURN_IF_ERROR(memory_.plans().Read(&bytes, kNoDeadline));
      FASTLLM_ASSIGN_OR_RETURN(const RankOrder order, DecodeOrder(bytes));
      if (order.kind == RankOrder::Kind::kEnd) return Status::Ok();
      if (learns && !order.learned.empty()) runner->Learn(order.learned);
      runner->Launch(order.plan, &step);
      step.Finish();
      FASTLLM_RETURN_IF_ERROR(step.result.status);
      std::swap(report.result, step.result);
      report.result.step_id = order.plan.step_id;
      FASTLLM_RETURN_IF_ERROR(Send(report));
    }
  }

  Status Send(const RankReport& report) {
    const std::string bytes = EncodeReport(report);
    const std::string_view part = bytes;
    return memory_.results(job_.member()).Write({&part, 1}, kNoDeadline);
  }

  const RankJob& job_;
  const RankWorkerOptions& options_;
  NodeMemory memory_;
};

}  // namespace

int ServeRank(int socket, const RankWorkerOptions& options) {
  // A terminal's Ctrl-C is for the driver, which ends its ranks in order.
  std::signal(SIGINT, SIG_IGN);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto received = ReceiveJob(socket);
  if (!received.ok()) {
    std::fprintf(stderr, "rank process: %s\n", received.status().message().c_str());
    return 1;
  }
  auto& [job, memory_fd] = *received;
  pthread_setname_np(pthread_self(), ("fastllm-rank" + std::to_string(job.rank)).substr(0, 15).c_str());
  auto memory = SharedMemory::Map(std::move(memory_fd));
  if (!memory.ok()) {
    std::fprintf(stderr, "rank %d: %s\n", job.rank, memory.status().message().c_str());
    return 1;
  }
  // A parent that ended before prctl() shows here too.
  std::thread([socket] { EndWith(socket); }).detach();
  RankWorker worker(job, std::move(memory).value(), options);
  if (worker.Run()) return 0;
  for (;;) pause();  // until EndWith() or a signal: the driver knows why, and an exit would be one more failure to name
}

}  // namespace fastllm::runtime
