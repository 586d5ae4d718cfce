// A dense product made of CUTLASS' parts for Hopper, as a template; one .cu for each few instances.
#pragma once

#include <cutlass/cutlass.h>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/kernel/tile_scheduler_params.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/util/packed_stride.hpp>

#include <memory>
#include <string>

#include "bench/ops/gemm/variant.h"

namespace fastllm::gemm_bench {

using cute::_1;
using cute::_2;
using cute::_4;
template <int kM, int kN, int kK>
using Tile = cute::Shape<cute::Int<kM>, cute::Int<kN>, cute::Int<kK>>;
template <int kM, int kN>
using Cluster = cute::Shape<cute::Int<kM>, cute::Int<kN>, _1>;

using Cooperative = cutlass::gemm::KernelTmaWarpSpecializedCooperative;
using Pingpong = cutlass::gemm::KernelTmaWarpSpecializedPingpong;
using StreamK = cutlass::gemm::StreamKScheduler;
using Persistent = cutlass::gemm::PersistentScheduler;

// kSwap: the weight's rows are the product's M, so that few rows of x are its N.
template <typename TileShape, typename ClusterShape, typename Schedule, typename Scheduler, bool kSwap>
struct CutlassGemm {
  using T = cutlass::bfloat16_t;
  using LayoutD = std::conditional_t<kSwap, cutlass::layout::ColumnMajor, cutlass::layout::RowMajor>;
  using EpilogueSchedule =
      std::conditional_t<std::is_same_v<Schedule, Cooperative>, cutlass::epilogue::TmaWarpSpecializedCooperative,
                         cutlass::epilogue::TmaWarpSpecialized>;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, TileShape, ClusterShape,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, LayoutD, 8, T, LayoutD, 8,
      EpilogueSchedule>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, T, cutlass::layout::RowMajor, 8, T,
      cutlass::layout::ColumnMajor, 8, float, TileShape, ClusterShape,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      Schedule>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue, Scheduler>;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

  // splits, mode: stream-K alone. swizzle: tiles of a raster band.
  static Launch Prepare(const Product& p, void* workspace, size_t bytes, cudaStream_t stream, int splits, int swizzle,
                        bool along_m) {
    typename Gemm::Arguments a;
    a.mode = cutlass::gemm::GemmUniversalMode::kGemm;
    const int m = kSwap ? p.n : p.rows, n = kSwap ? p.rows : p.n;
    a.problem_shape = {m, n, p.k, 1};
    a.mainloop.ptr_A = static_cast<const T*>(kSwap ? p.weight : p.x);
    a.mainloop.ptr_B = static_cast<const T*>(kSwap ? p.x : p.weight);
    a.mainloop.dA = cutlass::make_cute_packed_stride(typename Kernel::StrideA{}, {m, p.k, 1});
    a.mainloop.dB = cutlass::make_cute_packed_stride(typename Kernel::StrideB{}, {n, p.k, 1});
    a.epilogue.ptr_D = static_cast<T*>(p.out);
    a.epilogue.dD = cutlass::make_cute_packed_stride(typename Kernel::StrideD{}, {m, n, 1});
    a.epilogue.thread.alpha = 1.0f;
    a.epilogue.thread.beta = 0.0f;
    a.hw_info.device_id = 0;
    a.hw_info.sm_count = 132;
    a.scheduler.max_swizzle_size = swizzle;
    using Order = decltype(a.scheduler.raster_order);
    a.scheduler.raster_order = along_m ? Order::AlongM : Order::AlongN;
    if constexpr (std::is_same_v<Scheduler, StreamK>) {
      using Mode = decltype(a.scheduler.decomposition_mode);
      a.scheduler.decomposition_mode = splits == 0 ? Mode::StreamK : splits > 1 ? Mode::SplitK : Mode::Heuristic;
      a.scheduler.splits = splits > 1 ? splits : 1;
      a.scheduler.reduction_mode = decltype(a.scheduler.reduction_mode)::Nondeterministic;
    }
    auto gemm = std::make_shared<Gemm>();
    if (Gemm::can_implement(a) != cutlass::Status::kSuccess || Gemm::get_workspace_size(a) > bytes) return {};
    if (gemm->initialize(a, workspace, stream) != cutlass::Status::kSuccess) return {};
    // Stream-K's counters are not left at zero: each launch needs them cleared, as a real caller's would.
    const size_t used = Gemm::get_workspace_size(a);
    if constexpr (std::is_same_v<Scheduler, StreamK>) {
      if (used > 0) {
        return [gemm, a, workspace](cudaStream_t s) {
          gemm->initialize(a, workspace, s);
          gemm->run(s);
        };
      }
    }
    return [gemm](cudaStream_t s) { gemm->run(s); };
  }

  static void Add(Variants& all, const std::string& name, int least, int most, int splits = 1, int swizzle = 1,
                  bool along_m = true) {
    all.push_back({"cutlass " + name, false, least, most,
                   [=](const Product& p, void* workspace, size_t bytes, cudaStream_t stream) {
                     return Prepare(p, workspace, bytes, stream, splits, swizzle, along_m);
                   }});
  }
};

}  // namespace fastllm::gemm_bench
