#include "runtime/executor/rank_threads.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace fastllm::runtime {

RankThreads::RankThreads(std::unique_ptr<MemoryHub> hub_of_all, size_t num_slots, int32_t world)
    : hub(std::move(hub_of_all)), slots(num_slots), ranks(world) {
  for (Slot& slot : slots) slot.steps.resize(world);
}

Status RankThreads::Failure() {
  const std::lock_guard lock(mutex);
  return failure;
}

uint64_t RankThreads::NumDone() const { return std::ranges::min_element(ranks, {}, &Rank::done)->done; }

uint64_t RankThreads::Progress() const {
  uint64_t sum = 0;
  for (const Rank& r : ranks) sum += r.done;
  return sum;
}

size_t RankThreads::JoinProgress() const {
  return joined.size() + static_cast<size_t>(std::ranges::count(ranks, true, &Rank::joined));
}

bool RankThreads::All(bool Rank::*flag) const {
  return std::ranges::all_of(ranks, [flag](const Rank& r) { return r.*flag; });
}

bool RankThreads::AnyLoads() const {
  return std::ranges::any_of(ranks, [](const Rank& r) { return r.joined && !r.loaded; });
}

void RankThreads::Fail(const RankTopology& topology, const Status& why) {
  Status named = why;
  if (!why.message().starts_with("rank ")) named = Status(why.code(), topology.name() + ": " + why.message());
  {
    std::unique_lock lock(mutex);
    // What ranks say of an abort while it is looked for the one to blame is not to be heard.
    changed.wait(lock, [this] { return judge == std::thread::id() || judge == std::this_thread::get_id(); });
    if (failure.ok()) failure = named;
    named = failure;
  }
  if (size_kv != nullptr) size_kv->Break(named);
  Abort(named);
  changed.notify_all();
}

void RankThreads::Abort(const Status& why) {
  hub->Abort(why);
  AbortDevices(why);
}

void RankThreads::AbortDevices(const Status& why) {
  std::vector<std::shared_ptr<Communicator>> own;
  {
    const std::lock_guard lock(mutex);
    aborted = why;
    own = joined;
  }
  for (const auto& communicator : own) communicator->Abort(why);
}

Status RankThreads::Announce(const std::shared_ptr<Communicator>& communicator) {
  Status why;
  {
    const std::lock_guard lock(mutex);
    joined.push_back(communicator);
    why = aborted;
  }
  if (!why.ok()) communicator->Abort(why);
  return why;
}

Status RankThreads::Join(Ranks* own) {
  if (join) {
    own->host = own->tensor;
    const auto announce = [this](const std::shared_ptr<Communicator>& early) { static_cast<void>(Announce(early)); };
    FASTLLM_RETURN_IF_ERROR(join(own, announce));
    for (const auto& communicator : {own->tensor, own->pipeline}) {
      if (communicator != nullptr) FASTLLM_RETURN_IF_ERROR(Announce(communicator));
    }
  }
  const std::lock_guard lock(mutex);
  ranks[own->topology.rank].joined = true;
  changed.notify_all();
  return Status::Ok();
}

void RankLife::Run(ModelSource source) {
  try {
    Live(std::move(source));
  } catch (const std::exception& e) {
    shared_->Fail(topology(), Status::Internal(e.what()));
  } catch (...) {
    shared_->Fail(topology(), Status::Internal("an exception of unknown type"));
  }
  const std::lock_guard lock(shared_->mutex);
  own().joined = own().loaded = own().ended = true;
  shared_->changed.notify_all();
}

void RankLife::Live(ModelSource source) {
  if (const Status status = shared_->Join(&options_.ranks); !status.ok()) return shared_->Fail(topology(), status);
  auto runner = make_runner_(std::move(source), options_, topology().rank == 0 ? &shared_->phases : nullptr);
  if (!runner.ok()) return shared_->Fail(topology(), runner.status());
  {
    const std::lock_guard lock(shared_->mutex);
    own().loaded = true;
    shared_->changed.notify_all();
  }
  Loop(**runner);
}

void RankLife::Loop(StepRunner& runner) {
  std::unique_lock lock(shared_->mutex);
  for (;;) {
    shared_->changed.wait(
        lock, [this] { return shared_->stop || !shared_->failure.ok() || own().done < shared_->submitted; });
    if (shared_->stop || !shared_->failure.ok()) return;
    RankThreads::Slot& slot = shared_->slots[own().done % shared_->slots.size()];
    lock.unlock();
    PendingStep& step = slot.steps[topology().rank];
    if (!topology().last_stage() && !slot.learned.empty()) runner.Learn(slot.learned);
    runner.Launch(slot.plan, &step);
    if (!step.result.status.ok()) return shared_->Fail(topology(), step.result.status);
    lock.lock();
    ++own().done;
    shared_->changed.notify_all();
  }
}

}  // namespace fastllm::runtime
