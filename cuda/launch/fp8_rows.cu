// Launchers of quantize_fp8, rms_norm_fp8 and silu_mul_fp8.
#include <algorithm>
#include <string>

#include "core/base/check.h"
#include "cuda/launch/fp8_choice.h"
#include "cuda/launch/launch.h"
#include "cuda/launch/overlap.cuh"
#include "cuda/quant/fp8_rows.cuh"
#include "cuda/quant/fp8_silu_piped.cuh"

namespace fastllm::cuda {
namespace {

using ops::DType;
using ops::OpContext;
using ops::OpId;

// aligned: of everything that the row reads and writes.
template <typename T, typename Row>
void Launch(const Row& row, const ops::Fp8Rows& out, int32_t num_rows, int32_t k, bool aligned, const OpContext& ctx,
            const char* op) {
  if (num_rows <= 0 || k <= 0) return;
  const int32_t packs = k / Pack<T>::kSize;
  if (!aligned || k % Pack<T>::kSize != 0 || packs > 4 * 1024 || reinterpret_cast<uintptr_t>(out.q) % 8 != 0) {
    LaunchOverlapped(&Fp8RowsScalarKernel<Row>, dim3(num_rows), 256, 0, StreamOf(ctx), op, row, out, k);
    return;
  }
  // Few rows: as many threads as packs, for latency. Many: more work per thread and more blocks per multiprocessor.
  const bool few = num_rows < 4 * CurrentDevice().multiprocessors || packs > 8 * Fp8RowsThreads(8);
  const int32_t most = few ? 1024 : Fp8RowsThreads(8);
  const auto launch = [&](auto kernel, int32_t n) {
    const int32_t threads = CeilDiv(CeilDiv(packs, n), 32) * 32;
    LaunchOverlapped(kernel, dim3(num_rows), threads, 0, StreamOf(ctx), op, row, out, packs, num_rows >= kFp8EarlyRows);
  };
  const int32_t per_thread = CeilDiv(packs, most);
  if (per_thread <= 1) {
    launch(&Fp8RowsKernel<T, 1, Row>, 1);
  } else if (per_thread <= 2) {
    launch(&Fp8RowsKernel<T, 2, Row>, 2);
  } else if (per_thread <= 4) {
    launch(&Fp8RowsKernel<T, 4, Row>, 4);
  } else {
    launch(&Fp8RowsKernel<T, 8, Row>, 8);
  }
}

template <typename T>
void QuantizeFp8(const ops::QuantizeFp8Params& p, const OpContext& ctx) {
  const PlainRow<T> row{static_cast<const T*>(p.x), p.k};
  Launch<T>(row, p.out, p.num_rows, p.k, Aligned16(p.x), ctx, "quantize_fp8");
}

template <typename T>
void RmsNormFp8(const ops::RmsNormParams& p, const ops::Fp8Rows& out, const OpContext& ctx) {
  const NormRow<T> row{static_cast<const T*>(p.x), static_cast<T*>(p.residual), static_cast<const T*>(p.weight),
                       p.hidden, p.eps};
  const bool aligned = Aligned16(p.x) && Aligned16(p.residual) && Aligned16(p.weight);
  Launch<T>(row, out, p.num_tokens, p.hidden, aligned, ctx, "rms_norm_fp8");
}

// Whether the kernel whose blocks stay has taken the rows.
template <typename T>
bool LaunchPiped(const ops::SiluMulParams& p, const ops::Fp8Rows& out, const OpContext& ctx) {
  const DeviceFacts& device = CurrentDevice();
  const int32_t packs = p.n / Pack<T>::kSize, threads = CeilDiv(CeilDiv(packs, kFp8PipedPacks), 32) * 32;
  if (!StaysForFp8Rows(p.num_tokens, device.multiprocessors) || device.compute_capability < 90 || p.n <= 0 ||
      p.n % Pack<T>::kSize != 0 || threads > kFp8PipedThreads || !Aligned16(p.gate_up) || !Aligned16(out.q)) {
    return false;
  }
  const auto kernel = &Fp8SiluPipedKernel<T>;
  const int32_t bytes = Fp8PipedBytes(threads), most = Fp8PipedBytes(kFp8PipedThreads);
  AllowSharedMemory(reinterpret_cast<const void*>(kernel), most, "silu_mul_fp8");
  LaunchOverlapped(kernel, dim3(std::min(device.multiprocessors * (most / bytes), p.num_tokens)), threads, bytes,
                   StreamOf(ctx), "silu_mul_fp8", static_cast<const T*>(p.gate_up), out, p.num_tokens, packs);
  return true;
}

template <typename T>
void SiluMulFp8(const ops::SiluMulParams& p, const ops::Fp8Rows& out, const OpContext& ctx) {
  if (LaunchPiped<T>(p, out, ctx)) return;
  const SiluRow<T> row{static_cast<const T*>(p.gate_up), p.n};
  Launch<T>(row, out, p.num_tokens, p.n, Aligned16(p.gate_up), ctx, "silu_mul_fp8");
}

template <typename T>
void RegisterFor(ops::OpTable& table, DType dtype, const char* quantize, const char* norm, const char* silu) {
  AddOp(table, OpId::kQuantizeFp8, dtype, quantize, &QuantizeFp8<T>);
  AddOp(table, OpId::kRmsNormFp8, dtype, norm, &RmsNormFp8<T>);
  AddOp(table, OpId::kSiluMulFp8, dtype, silu, &SiluMulFp8<T>);
}

}  // namespace

void RegisterFp8RowOps(ops::OpTable& table) {
  RegisterFor<float>(table, DType::kF32, "cuda.quantize_fp8.f32", "cuda.rms_norm_fp8.f32", "cuda.silu_mul_fp8.f32");
  RegisterFor<__half>(table, DType::kF16, "cuda.quantize_fp8.f16", "cuda.rms_norm_fp8.f16", "cuda.silu_mul_fp8.f16");
  RegisterFor<bf16>(table, DType::kBF16, "cuda.quantize_fp8.bf16", "cuda.rms_norm_fp8.bf16", "cuda.silu_mul_fp8.bf16");
}

}  // namespace fastllm::cuda
