#include "runtime/models/base/weight_memory.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "ops/table/device.h"
#include "runtime/models/base/weight_map.h"
#include "runtime/tensor/host_memory.h"
#include "runtime/tensor/tensors.h"

namespace fastllm::runtime {
namespace {

constexpr int64_t kAlignment = 64;  // bytes, of every parameter

int64_t RoundUp(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t PaddedBytes(const Param& p, const Placement& placement) {
  if (p.is_fp8) return RoundUp(p.numel()) + RoundUp(p.rows() * static_cast<int64_t>(sizeof(float)));
  int64_t bytes = p.is_packed() || p.is_half() ? 0 : p.numel() * ops::DTypeSize(placement.dtype);
  for (const ops::QuantWeight& w : p.packed) bytes += ops::PackedBytes(w.format, w.n, w.k);
  for (const ops::HalfWeight& w : p.halves) bytes += ops::HalfBytes(w.n, w.k);
  return RoundUp(bytes);
}

// What keeps the memory of all parameters alive, and where it is.
struct Slab {
  std::shared_ptr<void> owner;
  char* data = nullptr;
};

// One mapping with huge pages.
Result<Slab> HostSlab(int64_t bytes) {
  FASTLLM_ASSIGN_OR_RETURN(HostMemory mapped, HostMemory::Map(static_cast<size_t>(bytes), /*huge_pages=*/true));
  auto memory = std::make_shared<HostMemory>(std::move(mapped));
  return Slab{memory, static_cast<char*>(memory->data())};
}

Result<Slab> DeviceSlab(int64_t bytes, const Placement& placement) {
  const ops::DeviceApi* device = ops::FindDevice(placement.device);
  FASTLLM_CHECK(device != nullptr, "weights for a device that is not there");
  const ops::DeviceMemoryInfo memory = device->memory();
  if (bytes > memory.free_bytes) {
    return Status::ResourceExhausted("the weights need " + std::to_string(bytes) + " bytes of device memory; " +
                                     std::to_string(memory.free_bytes) + " of " + std::to_string(memory.total_bytes) +
                                     " are free on " + device->name());
  }
  auto tensor = std::make_shared<at::Tensor>(Empty({bytes}, placement.Options(at::kByte)));
  return Slab{tensor, static_cast<char*>(tensor->data_ptr())};
}

}  // namespace

Status AllocateWeights(const Placement& placement, ParamSet& params) {
  const bool host = placement.device == ops::Device::kCpu;
  const int64_t bytes = ParamBytes(params, placement);
  FASTLLM_ASSIGN_OR_RETURN(const Slab slab, host ? HostSlab(bytes) : DeviceSlab(bytes, placement));
  params.Keep(slab.owner);
  int64_t offset = 0;
  for (const auto& p : params.all()) {
    if (p->is_packed() || p->is_half()) {
      const auto* data = reinterpret_cast<const uint8_t*>(slab.data) + offset;
      for (ops::QuantWeight& w : p->packed) {
        w.data = data;
        data += ops::PackedBytes(w.format, w.n, w.k);
      }
      for (ops::HalfWeight& w : p->halves) {
        w.data = reinterpret_cast<const uint16_t*>(data);
        data += ops::HalfBytes(w.n, w.k);
      }
      offset += PaddedBytes(*p, placement);
      continue;
    }
    std::vector<int64_t> shape = {p->rows()};
    if (p->cols.size != 0) shape.push_back(p->cols.size);
    const auto view = [&](int64_t at, const std::vector<int64_t>& sizes, ops::DType type) {
      return Wrap(slab.data + at, sizes, placement.Options(type), slab.owner);
    };
    p->value = view(offset, shape, p->is_fp8 ? ops::DType::kF8E4M3 : placement.dtype);
    if (p->is_fp8) p->scale = view(offset + RoundUp(p->numel()), {p->rows()}, ops::DType::kF32);
    offset += PaddedBytes(*p, placement);
  }
  return Status::Ok();
}

Status CheckShare(const Param& param, bool quantize_int8) {
  constexpr int64_t kBlock = ops::kQuantBlock;
  const Slice& cols = param.cols;
  const bool blocks = cols.full % kBlock == 0 && cols.size != 0;  // whole rows that are none stay floats
  if (!quantize_int8 || !blocks || (cols.begin % kBlock == 0 && cols.size % kBlock == 0)) return Status::Ok();
  return Status::InvalidArgument("quantization int8: a rank's share of " + std::to_string(cols.size) + " of the " +
                                 std::to_string(cols.full) + " columns of " + param.name + " is not whole blocks of " +
                                 std::to_string(kBlock));
}

int64_t ParamBytes(const ParamSet& params, const Placement& placement) {
  int64_t bytes = 0;
  for (const auto& p : params.all()) bytes += PaddedBytes(*p, placement);
  return bytes;
}

}  // namespace fastllm::runtime
