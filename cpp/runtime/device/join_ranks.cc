#include "runtime/device/join_ranks.h"

#include <ATen/core/Tensor.h>

#include <exception>
#include <string>
#include <thread>
#include <utility>

#include "runtime/tensor/tensors.h"

namespace fastllm::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kLeastBytes = int64_t{1} << 10, kMostBytes = int64_t{16} << 20;
// How long a device that is told not to wait for others may take to come to its end.
constexpr std::chrono::seconds kGrace{1};

// What the first calls work on.
struct Bench {
  Bench(const ops::DeviceApi& of, const Placement& placement, int32_t size)
      : device(of),
        in(Empty({kMostBytes}, placement.Options(at::kByte))),
        out(Empty({kMostBytes * size}, placement.Options(at::kByte))),
        stream(of.CreateStream()),
        event(of.CreateEvent()) {}
  ~Bench() {
    device.DestroyEvent(event);
    device.DestroyStream(stream);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  const ops::DeviceApi& device;
  const at::Tensor in;
  const at::Tensor out;
  void* const stream;
  void* const event;
};

// NCCL connects the ranks when calls of a size come for the first time, which waits for what runs on the device.
Status Enqueue(const Bench& bench, Communicator& group) {
  const ops::OpContext context{bench.stream, 1};
  Status status;
  for (int64_t bytes = kLeastBytes; bytes <= kMostBytes && status.ok(); bytes *= 4) {
    const int64_t count = bytes / CommTypeSize(CommType::kBF16);
    status = group.AllReduceSum(context, bench.in.mutable_data_ptr(), count, CommType::kBF16);
    if (!status.ok()) break;
    status = group.AllGather(context, bench.in.const_data_ptr(), bench.out.mutable_data_ptr(),
                             bytes / CommTypeSize(CommType::kF32), CommType::kF32);
  }
  bench.device.RecordEvent(bench.event, bench.stream);
  return status;
}

bool EndsWithin(const Bench& bench, std::chrono::milliseconds time) {
  const auto until = Clock::now() + time;
  while (!bench.device.IsDone(bench.event)) {
    if (Clock::now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

// Until the calls have run, some rank has failed, or the time is up.
Status Await(const Bench& bench, const JoinPlan& plan, const Communicator& group, const Ranks& ranks) {
  const auto until = Clock::now() + plan.timeout;
  while (!bench.device.IsDone(bench.event)) {
    FASTLLM_RETURN_IF_ERROR(ranks.host->broken());
    FASTLLM_RETURN_IF_ERROR(group.broken());
    if (Clock::now() > until) {
      return Status(StatusCode::kDeadlineExceeded, ranks.topology.name() +
                                                       " did not finish its first sums with the other ranks within " +
                                                       std::to_string(plan.timeout.count()) + " ms");
    }
    std::this_thread::yield();
  }
  return Status::Ok();
}

// After a failure: whether nothing on the device uses the bench any more.
bool ComesToRest(const Bench& bench) {
  try {
    return EndsWithin(bench, kGrace);
  } catch (const std::exception&) {
    return false;  // a device that has broken down says so to whoever asks it
  }
}

Status MakeFirstCalls(std::unique_ptr<Bench> bench, const JoinPlan& plan, Communicator& group, const Ranks& ranks) {
  Status status = Enqueue(*bench, group);
  if (status.ok()) status = Await(*bench, plan, group, ranks);
  if (status.ok()) return status;
  group.Abort(status);
  if (!ComesToRest(*bench)) {
    static_cast<void>(bench.release());  // its device may still write there
    return status;
  }
  if (status.code() != StatusCode::kDeadlineExceeded) return status;
  // This one has only waited. Whoever hangs says so; the wait for that is a meeting that it does not come to.
  const Status other = ranks.host->Barrier({});
  return other.ok() ? status : other;
}

}  // namespace

Status JoinRanks(const ops::DeviceApi& device, const JoinPlan& plan, Ranks* ranks) {
  auto bench = std::make_unique<Bench>(device, plan.peers.placement, ranks->host->size());
  FASTLLM_RETURN_IF_ERROR(ranks->host->Barrier({}));
  FASTLLM_ASSIGN_OR_RETURN(auto group, plan.connect(*ranks));
  if (plan.announce) plan.announce(group);
  FASTLLM_RETURN_IF_ERROR(MakeFirstCalls(std::move(bench), plan, *group, *ranks));
  FASTLLM_ASSIGN_OR_RETURN(ranks->tensor, MakePeerCommunicator(*ranks->host, std::move(group), plan.peers));
  return ranks->host->Barrier({});
}

}  // namespace fastllm::runtime
