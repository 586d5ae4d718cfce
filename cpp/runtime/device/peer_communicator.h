// A communicator for ranks that are threads of one process and whose devices write into each other's memory: small sums
// by peer_reduce, everything else by another communicator (NCCL).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "fastllm/status.h"
#include "ops/contract/peer_argmax.h"
#include "ops/contract/peer_piece.h"
#include "ops/contract/peer_reduce.h"
#include "ops/contract/peer_rows.h"
#include "ops/table/op_table.h"
#include "runtime/comm/communicator.h"
#include "runtime/tensor/placement.h"

namespace fastllm::runtime {

struct PeerOptions {
  Placement placement;                    // of this rank's box: on the device that is current in its thread
  std::string name;                       // of this rank, as RankTopology::NameOf() says it
  int64_t most_bytes = int64_t{2} << 20;  // of a sum that is done this way
  // What the device's arm offers: ops::CudaPeerReduce, CudaPeerReduceNorm, CudaReachPeer.
  std::function<ops::PeerReduceFn(ops::DType)> reduce_of;
  std::function<ops::PeerReduceNormFn(ops::DType)> reduce_norm_of;  // null: there is none
  std::function<bool(int32_t device)> reach;
  ops::PeerArgmaxFn argmax = nullptr;  // null: there is none
  // Of two ranks, sums with a norm of up to `rows` rows of `row_bytes` go this way too; 0 or null: they do not.
  int64_t rows = 0;
  int64_t row_bytes = 0;
  std::function<ops::PeerRowsNormFn(ops::DType)> rows_norm_of;
  // Those of at least `least_cut_rows` rows also in two pieces; the first is half of the rows, up to the next multiple
  // of `piece_rows`. 0 or null: they are not cut.
  int64_t least_cut_rows = 0;
  int64_t piece_rows = 1;
  std::function<ops::PeerPieceNormFn(ops::DType)> piece_norm_of;
};

// Joins: all ranks at one time, each from its thread. `host` has the same ranks in the same order and takes pointers to
// host memory; it is only used here. Gives `rest` back, on all ranks, where the group is larger than kMostPeers or some
// device does not reach another.
//
// Sums are in the order of the ranks in float32, rounded once, at any size that goes this way; those of `rest` are in
// its own order. Data of small sums lies at a multiple of 8 bytes (kInternal). HasSumNorm() for as many rows as boxes
// have room for. Abort() also ends kernels that wait.
Result<std::shared_ptr<Communicator>> MakePeerCommunicator(Communicator& host, std::shared_ptr<Communicator> rest,
                                                           const PeerOptions& options);

}  // namespace fastllm::runtime
