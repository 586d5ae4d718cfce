// RankTopology: which ranks there are and what each of them holds. Plain data; every rank of an engine has the same one
// but for its own number.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fastllm/status.h"

namespace fastllm::runtime {

// How many ways each kind of parallelism splits the work. Expert and context parallelism are reserved: 1.
struct ParallelSizes {
  int32_t tensor = 1;    // shares of each matrix
  int32_t pipeline = 1;  // stages, each with some of the layers
  int32_t data = 1;      // replicas
  int32_t expert = 1;
  int32_t context = 1;

  int32_t world() const { return tensor * pipeline * data * context; }
  // Ranks of one replica, which one engine drives.
  int32_t replica() const { return tensor * pipeline * context; }
};

// Where a rank is along each of them.
struct RankCoordinates {
  int32_t tensor = 0;
  int32_t pipeline = 0;  // the stage
  int32_t data = 0;

  bool operator==(const RankCoordinates&) const = default;
};

// Ranks are numbered with tensor fastest, then pipeline, then data (as vLLM and Megatron do): ranks of a tensor group,
// which talk most, are neighbours.
struct RankTopology {
  ParallelSizes sizes;
  int32_t rank = 0;

  // kInvalidArgument names a size below 1 or a rank outside the world; kUnimplemented a reserved size that is not 1.
  static Result<RankTopology> Create(const ParallelSizes& sizes, int32_t rank);

  int32_t world() const { return sizes.world(); }
  RankCoordinates coordinates() const { return CoordinatesOf(rank); }
  RankCoordinates CoordinatesOf(int32_t of) const;
  int32_t RankOf(const RankCoordinates& at) const;

  int32_t tp_rank() const { return coordinates().tensor; }
  int32_t pp_rank() const { return coordinates().pipeline; }
  int32_t dp_rank() const { return coordinates().data; }
  bool first_stage() const { return pp_rank() == 0; }
  bool last_stage() const { return pp_rank() == sizes.pipeline - 1; }
  // Whose StepResult counts: tensor rank 0 of the last stage of this rank's replica.
  int32_t output_rank() const;
  bool gives_output() const { return rank == output_rank(); }

  // Ranks of this rank's groups, in order of their coordinate: a rank's number in the communicator of a group is its
  // place in the list.
  std::vector<int32_t> TensorGroup() const;
  std::vector<int32_t> PipelineGroup() const;
  std::vector<int32_t> DataGroup() const;

  // "rank 3 (tp 1, pp 1)", for messages; with data parallelism also dp.
  std::string NameOf(int32_t of) const;
  std::string name() const { return NameOf(rank); }
};

}  // namespace fastllm::runtime
