#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "aligned.hpp"
#include "cost_networks.hpp"
#include "interrupt.hpp"
#include "kernels/kernels.hpp"
#include "problem.hpp"
#include "shard_catalog.hpp"

namespace neuroshard {

/// Greedy passes: each places shards one after the other, every one on the device whose predicted
/// compute cost is lowest so far. A device takes a shard if the shard fits in its memory and the sum
/// of its output dims stays within a limit.
///
/// kLanes passes run side by side: what the processor can do at once is the same step of several
/// passes, while the steps of one pass wait for each other. One object serves one thread.
class GreedyPasses {
 public:
  struct Pass {
    std::span<const ShardCatalog::Kind> shards;  // in the order in which they are placed
    double output_dim_limit;
  };

  GreedyPasses(const CostNetworks& networks, const Problem& problem, const ShardCatalog& catalog,
               Interrupt& interrupt);

  /// Runs up to kLanes passes with the same number of shards.
  void run(std::span<const Pass> passes);

  /// Whether in pass `lane` all shards have found a device.
  bool complete(std::size_t lane) const { return complete_[lane]; }

  /// Device of each shard in pass `lane`, in the order in which they were placed.
  std::vector<int> devices(std::size_t lane) const;

  /// Compute costs [devices][kLanes] in ms; where nothing is placed, that is what the network gives
  /// for nothing, not 0.
  const float* device_costs();

  /// Sums of the output dims [devices][kLanes], in fp32 numbers a sample.
  const float* output_dims();

 private:
  void clear_devices();
  void choose(std::size_t position);
  void put(std::size_t position);

  const CostNetworks& networks_;
  const Problem& problem_;
  const ShardCatalog& catalog_;
  Interrupt& interrupt_;
  SetNetwork::Workspace workspace_;

  // Whether all sums of output dims are exact in fp32, as those of pooled tables are. Where they are
  // not, those in double decide.
  const bool floats_are_exact_;

  // Of each lane.
  PerLane<const ShardCatalog::Kind*> shards_{};
  PerLane<float> output_dim_limit_{};         // as far as whole numbers go
  PerLane<double> exact_output_dim_limit_{};
  PerLane<std::int64_t> highest_memory_{};  // of any device, bytes
  PerLane<bool> complete_{};                // so far
  PerLane<std::int32_t> chosen_{};          // device of the shard being placed

  // [devices][kLanes]
  AlignedVector<float> cost_;  // as the pass compares it, ms; 0 where nothing is placed
  AlignedVector<float> output_dims_;
  AlignedVector<double> exact_output_dims_;
  AlignedVector<std::int64_t> memory_;
  AlignedVector<float> rounded_memory_;
  AlignedVector<std::uint8_t> used_;  // whether anything is placed
  AlignedVector<float> device_costs_;

  AlignedVector<float> sums_;    // [kLanes][devices][sums of the set network]
  AlignedVector<float> nowhere_;  // sums for lanes whose pass has failed
  std::vector<int> device_;       // [shards][kLanes]
};

}  // namespace neuroshard
