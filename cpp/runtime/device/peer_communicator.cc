#include "runtime/device/peer_communicator.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "ops/table/device.h"
#include "runtime/comm/comm_call.h"
#include "runtime/device/peer_pieces.h"
#include "runtime/tensor/tensors.h"

namespace fastllm::runtime {
namespace {

// A rank's memory that the others write to. All ranks keep all boxes: who ends first may still be written to.
struct Box {
  at::Tensor memory;
  at::Tensor rows;    // of sums with a norm of many rows, if any
  at::Tensor pieces;  // of those in pieces, if any
  int32_t device = 0;
};

bool HasRows(const PeerOptions& o, int32_t size) {
  return size == 2 && o.rows_norm_of != nullptr && o.rows > 0 && o.row_bytes % ops::kPeerRowAlignment == 0 &&
         o.row_bytes > 0 && o.row_bytes <= ops::kMostPeerRowBytes;
}

bool HasPieces(const PeerOptions& o, int32_t size) {
  return HasRows(o, size) && o.least_cut_rows > 1 && o.piece_norm_of != nullptr;
}

// A word in host memory that a device reads while its kernels run.
class StopWord {
 public:
  explicit StopWord(const ops::DeviceApi& device)
      : device_(device), word_(static_cast<uint32_t*>(device.AllocatePinned(sizeof(uint32_t)))) {
    *word_ = 0;
  }
  ~StopWord() { device_.FreePinned(word_); }
  StopWord(const StopWord&) = delete;
  StopWord& operator=(const StopWord&) = delete;

  const uint32_t* get() const { return word_; }
  void Stop() { std::atomic_ref<uint32_t>(*word_).store(1); }

 private:
  const ops::DeviceApi& device_;
  uint32_t* const word_;
};

// Of the device that is current, which writes them on its default stream.
at::Tensor Zeros(const ops::DeviceApi& device, int64_t bytes, const PeerOptions& options) {
  at::Tensor out = Empty({bytes}, options.placement.Options(at::kByte));
  device.Zero(out.mutable_data_ptr(), static_cast<size_t>(bytes), nullptr);
  return out;
}

class PeerCommunicator : public Communicator {
 public:
  PeerCommunicator(std::shared_ptr<Communicator> rest, const PeerOptions& options, const ops::DeviceApi& device,
                   std::vector<std::shared_ptr<Box>> boxes)
      : rest_(std::move(rest)), options_(options), boxes_(std::move(boxes)), stop_(device) {
    params_.rank = rest_->rank();
    params_.size = rest_->size();
    params_.capacity = ops::PeerUnits(options.most_bytes);
    for (size_t r = 0; r < boxes_.size(); ++r) params_.boxes[r] = boxes_[r]->memory.mutable_data_ptr();
    epochs_ = Zeros(device, ops::PeerBlocks(params_.capacity) * static_cast<int64_t>(sizeof(uint32_t)), options);
    params_.epochs = reinterpret_cast<uint32_t*>(epochs_.mutable_data_ptr());
    params_.stop = stop_.get();
    for (const ops::DType t : {ops::DType::kF32, ops::DType::kF16, ops::DType::kBF16}) {
      reduce_[static_cast<size_t>(t)] = options.reduce_of(t);
      if (options.reduce_norm_of) reduce_norm_[static_cast<size_t>(t)] = options.reduce_norm_of(t);
      if (HasRows(options, size())) rows_.norm[static_cast<size_t>(t)] = options.rows_norm_of(t);
    }
    if (!HasRows(options, size())) return;
    rows_.boxes = {params_.rank, params_.size, options.rows, options.row_bytes};
    for (size_t r = 0; r < boxes_.size(); ++r) rows_.boxes.boxes[r] = boxes_[r]->rows.mutable_data_ptr();
    rows_.counts = Zeros(device, options.rows * static_cast<int64_t>(sizeof(uint32_t)), options);
    rows_.boxes.epochs = reinterpret_cast<uint32_t*>(rows_.counts.mutable_data_ptr());
    rows_.boxes.stop = stop_.get();
    if (HasPieces(options, size())) MakePieces(device);
  }

  int32_t rank() const override { return rest_->rank(); }
  int32_t size() const override { return rest_->size(); }

  Status AllReduceSum(const ops::OpContext& context, void* data, int64_t count, CommType type) override {
    const int64_t bytes = count * CommTypeSize(type);
    if (bytes > options_.most_bytes) return rest_->AllReduceSum(context, data, count, type);
    FASTLLM_RETURN_IF_ERROR(broken());
    FASTLLM_RETURN_IF_ERROR(CheckSum(type, options_.name));
    if (reinterpret_cast<uintptr_t>(data) % ops::kPeerUnitBytes != 0) {
      return Status::Internal(options_.name + " sums data that is not at a multiple of " +
                              std::to_string(ops::kPeerUnitBytes) + " bytes");
    }
    ops::PeerReduceParams p = params_;
    p.data = data;
    p.count = count;
    p.two_shots = ops::PeerTwoShots(p.size, bytes);
    reduce_[static_cast<size_t>(type)](p, context);
    return Status::Ok();
  }
  bool HasSumNorm(int64_t rows, int64_t hidden, CommType type) const override {
    return FitsRows(rows, hidden, type) || FitsUnits(rows, hidden, type);
  }
  Status AllReduceNorm(const ops::OpContext& context, const ops::RmsNormParams& p, CommType type,
                       const ops::NextWeight& next) override {
    FASTLLM_RETURN_IF_ERROR(broken());
    if (!HasSumNorm(p.num_tokens, p.hidden, type)) {
      return Status::Internal(options_.name + " has no sum with a norm for " + std::to_string(p.num_tokens) +
                              " rows of " + std::to_string(p.hidden));
    }
    if (FitsRows(p.num_tokens, p.hidden, type)) {
      rows_.norm[static_cast<size_t>(type)]({rows_.boxes, p, next}, context);
    } else {
      reduce_norm_[static_cast<size_t>(type)]({params_, p, next}, context);
    }
    return Status::Ok();
  }
  int64_t FirstPiece(int64_t rows, int64_t hidden, CommType type) const override {
    if (pieces_ == nullptr || rows < options_.least_cut_rows || !pieces_->Fits(rows, hidden, type)) return 0;
    const int64_t first = (rows / 2 + options_.piece_rows - 1) / options_.piece_rows * options_.piece_rows;
    return first < rows ? first : 0;
  }
  Status BeginSumNorm(const ops::OpContext& context, const SumPiece& piece, const void* x, int64_t rows, int64_t hidden,
                      CommType type) override {
    FASTLLM_RETURN_IF_ERROR(broken());
    if (pieces_ == nullptr) return Communicator::BeginSumNorm(context, piece, x, rows, hidden, type);
    return pieces_->Begin(context, piece, x, rows, hidden, type);
  }
  Status EndSumNorm(const ops::OpContext& context, const SumPiece& piece, const ops::RmsNormParams& p,
                    CommType type) override {
    FASTLLM_RETURN_IF_ERROR(broken());
    if (pieces_ == nullptr) return Communicator::EndSumNorm(context, piece, p, type);
    return pieces_->End(context, piece, p, type);
  }
  bool HasArgmax(int64_t rows) const override {
    return options_.argmax != nullptr && rows <= ops::PeerBlocks(params_.capacity);
  }
  Status Argmax(const ops::OpContext& context, const ArgmaxCall& c) override {
    FASTLLM_RETURN_IF_ERROR(broken());
    if (!HasArgmax(c.rows))
      return Status::Internal(options_.name + " picks no tokens of " + std::to_string(c.rows) + " rows");
    options_.argmax({params_, c.logits, c.tokens, c.stride, c.rows, c.width, c.first_id}, context);
    return Status::Ok();
  }
  Status AllGather(const ops::OpContext& context, const void* in, void* out, int64_t count, CommType type) override {
    return rest_->AllGather(context, in, out, count, type);
  }
  Status Broadcast(const ops::OpContext& context, void* data, int64_t count, CommType type, int32_t root) override {
    return rest_->Broadcast(context, data, count, type, root);
  }
  Status Send(const ops::OpContext& context, const void* data, int64_t count, CommType type, int32_t to) override {
    return rest_->Send(context, data, count, type, to);
  }
  Status Recv(const ops::OpContext& context, void* data, int64_t count, CommType type, int32_t from) override {
    return rest_->Recv(context, data, count, type, from);
  }
  Status Barrier(const ops::OpContext& context) override { return rest_->Barrier(context); }

  void Abort(const Status& why) override {
    {
      const std::lock_guard lock(mutex_);
      if (broken_.ok()) broken_ = why;
    }
    stop_.Stop();
    rest_->Abort(why);
  }
  Status broken() const override {
    const std::lock_guard lock(mutex_);
    return broken_;
  }

  // Once all have their boxes.
  void Prepare() {
    if (pieces_ != nullptr) pieces_->Prepare();
  }

 private:
  void MakePieces(const ops::DeviceApi& device) {
    PeerPieceBoxes b{params_.rank, params_.size, options_.rows, options_.row_bytes, {}, stop_.get()};
    for (size_t r = 0; r < boxes_.size(); ++r) b.boxes[r] = boxes_[r]->pieces.mutable_data_ptr();
    PeerPieces::NormFns norms{};
    for (const ops::DType t : {ops::DType::kF32, ops::DType::kF16, ops::DType::kBF16}) {
      norms[static_cast<size_t>(t)] = options_.piece_norm_of(t);
    }
    pieces_ = std::make_unique<PeerPieces>(device, b, norms, options_.name);
  }
  bool FitsUnits(int64_t rows, int64_t hidden, CommType type) const {
    if (type > CommType::kBF16 || reduce_norm_[static_cast<size_t>(type)] == nullptr) return false;
    // It is of one shot: between many ranks that writes too much.
    if (params_.size > 2 && ops::PeerTwoShots(params_.size, rows * hidden * CommTypeSize(type))) return false;
    const int64_t units = ops::PeerNormUnits(rows, hidden * CommTypeSize(type));
    return units > 0 && units <= params_.capacity;
  }
  bool FitsRows(int64_t rows, int64_t hidden, CommType type) const {
    if (type > CommType::kBF16 || rows_.norm[static_cast<size_t>(type)] == nullptr) return false;
    return rows <= rows_.boxes.rows && hidden * CommTypeSize(type) == rows_.boxes.row_bytes;
  }

  const std::shared_ptr<Communicator> rest_;
  const PeerOptions options_;
  const std::vector<std::shared_ptr<Box>> boxes_;
  at::Tensor epochs_;
  StopWord stop_;
  ops::PeerReduceParams params_;  // of every call
  std::array<ops::PeerReduceFn, 3> reduce_{};
  std::array<ops::PeerReduceNormFn, 3> reduce_norm_{};
  struct ManyRows {
    ops::PeerRowsBoxes boxes;  // of every call
    at::Tensor counts;
    std::array<ops::PeerRowsNormFn, 3> norm{};
  } rows_;
  std::unique_ptr<PeerPieces> pieces_;  // null: sums are not cut
  mutable std::mutex mutex_;
  Status broken_;
};

// What each rank has there, from all.
template <typename T>
Result<std::vector<T>> Gather(Communicator& host, const T& own) {
  std::vector<T> all(static_cast<size_t>(host.size()));
  FASTLLM_RETURN_IF_ERROR(host.AllGather({}, &own, all.data(), static_cast<int64_t>(sizeof(T)), CommType::kByte));
  return all;
}

}  // namespace

Result<std::shared_ptr<Communicator>> MakePeerCommunicator(Communicator& host, std::shared_ptr<Communicator> rest,
                                                           const PeerOptions& options) {
  const int32_t size = host.size();
  if (size < 2 || size > ops::kMostPeers) return rest;
  const ops::DeviceApi* device = ops::FindDevice(options.placement.device);
  if (device == nullptr) return Status::Unimplemented("this build or machine has no such device");
  const auto box = std::make_shared<Box>();
  const int64_t bytes = ops::PeerBoxBytes(size, ops::PeerUnits(options.most_bytes));
  box->memory = Zeros(*device, bytes, options);
  if (HasRows(options, size)) {
    box->rows = Zeros(*device, ops::PeerRowsBytes(size, options.rows, options.row_bytes), options);
  }
  if (HasPieces(options, size)) {
    box->pieces = Zeros(*device, PeerPieceBoxes::Bytes(size, options.rows, options.row_bytes), options);
  }
  box->device = box->memory.is_cpu() ? 0 : box->memory.get_device();
  // Ranks are threads of one process, so what they tell each other is where they are.
  FASTLLM_ASSIGN_OR_RETURN(const auto places, Gather(host, &box));
  std::vector<std::shared_ptr<Box>> boxes;
  int32_t reaches = 1;
  for (const std::shared_ptr<Box>* place : places) {
    boxes.push_back(*place);
    if (!options.reach(boxes.back()->device)) reaches = 0;
  }
  auto own = std::make_shared<PeerCommunicator>(rest, options, *device, std::move(boxes));
  device->Synchronize(nullptr);  // a kernel of another rank may write as soon as that one has been told
  FASTLLM_ASSIGN_OR_RETURN(const auto all_reach, Gather(host, reaches));
  if (std::ranges::find(all_reach, 0) != all_reach.end()) return rest;
  own->Prepare();
  return std::shared_ptr<Communicator>(std::move(own));
}

}  // namespace fastllm::runtime
