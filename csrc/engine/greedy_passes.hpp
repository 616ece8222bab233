#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "aligned.hpp"
#include "cost_networks.hpp"
#include "kernels/kernels.hpp"
#include "problem.hpp"
#include "shard_catalog.hpp"

namespace neuroshard {

/// Greedy passes: each places shards one after the other, every one on the device whose predicted
/// compute cost is lowest so far. A device takes a shard if the shard fits in its memory and the
/// sum of its output dims stays within a limit, one of a grid of limits.
///
/// kLanes passes run side by side: the steps of one pass wait for each other, those of different
/// passes do not, and vector registers take them together. One object serves one thread.
class GreedyPasses {
 public:
  /// Keeps references to networks and catalog. The limits ascend.
  GreedyPasses(const CostNetworks& networks, const Problem& problem, const ShardCatalog& catalog,
               std::vector<double> output_dim_limits);

  /// Starts a pass in a lane: shards in the order in which they are placed, and the index of the
  /// limit.
  void start(std::size_t lane, std::span<const ShardCatalog::Kind> shards, std::size_t limit);

  /// Starts the pass of lane `from` in lane `to`, which may be the same, under a lower limit. What
  /// is placed stays as far as the devices chosen were open under that limit: they were the best of
  /// more, so they are the best.
  void start_from(std::size_t from, std::size_t to, std::size_t limit);

  /// Places the next shard in every running pass. A pass stops when all its shards are placed or no
  /// device is open.
  void step();

  bool running(std::size_t lane) const { return passes_[lane].running; }

  /// Whether all shards have been placed.
  bool complete(std::size_t lane) const {
    return passes_[lane].placed == passes_[lane].shards.size();
  }

  /// Device of each shard placed, in order.
  std::span<const std::int32_t> devices(std::size_t lane) const {
    return std::span(passes_[lane].devices).first(passes_[lane].placed);
  }

  /// Shards that the pass did not place itself: `start_from` left them where they were.
  std::size_t taken_over(std::size_t lane) const { return passes_[lane].taken_over; }

  std::span<const ShardCatalog::Kind> shards(std::size_t lane) const {
    return passes_[lane].shards;
  }

  /// The lowest limit that gives the same placements.
  std::size_t lowest_limit(std::size_t lane) const { return passes_[lane].lowest_limit; }

  /// Writes the compute cost, in ms, and the sum of output dims, in fp32 numbers a sample, of each
  /// device of a lane, one every kLanes floats. Where nothing is placed the cost is what the
  /// network gives for nothing, not 0.
  void device_loads(std::size_t lane, float* compute, float* output_dims) const;

 private:
  /// What a device holds.
  struct Load {
    std::int64_t memory = 0;   // bytes
    double output_dims = 0.0;  // fp32 numbers a sample
    float cost = 0.0F;         // as the pass compares it, ms
    std::int32_t device = 0;
    std::uint32_t before = 0;  // index of what the device held under lower limits
    std::uint32_t limit = 0;   // index of the lowest limit under which the pass comes to this
    std::size_t placed = 0;    // how many shards were on devices when the pass came to need it
  };

  struct Pass {
    std::span<const ShardCatalog::Kind> shards;
    std::vector<std::int32_t> devices;  // of each shard
    std::size_t placed = 0;             // how many of them are on devices
    std::size_t taken_over = 0;
    double output_dim_limit = 0.0;
    bool running = false;
    std::uint32_t lowest_limit = 0;  // that gives the same placements so far

    // What the devices hold now and what they held last under each lower limit, by limits, and
    // first of all a device that holds nothing. So a pass goes back to where a limit first matters
    // by forgetting the last of these.
    std::vector<Load> loads;
    std::uint32_t last_load = 0;  // what follows is not in use
    AlignedVector<float> sums;    // of the set network, [loads][its size]

    // Of the next shard.
    std::int64_t bytes = 0;
    double output_dim = 0.0;

    bool open(const Load& load, std::int64_t memory_bytes) const {
      return load.memory <= memory_bytes - bytes &&
             load.output_dims + output_dim <= output_dim_limit;
    }
  };

  void prepare(std::size_t lane);
  void settle(std::size_t lane);
  int choose_exactly(std::size_t lane, int first, int last) const;
  void show(std::size_t lane, int device, std::uint32_t index);
  static std::size_t at(std::size_t lane, int device) {
    return static_cast<std::size_t>(device) * kLanes + lane;
  }

  const CostNetworks& networks_;
  const ShardCatalog& catalog_;
  const std::size_t devices_;
  const std::int64_t memory_bytes_;              // of a device
  const std::vector<double> output_dim_limits_;  // of a device, fp32 numbers a sample
  SetNetwork::Workspace workspace_;

  PerLane<Pass> passes_;

  // Of the next shard of each lane.
  PerLane<float> rounded_memory_limit_{};  // of what a device that takes it holds already
  PerLane<float> rounded_output_dim_limit_{};
  PerLane<std::int32_t> first_{};  // device of the lowest cost, as far as rounding tells
  PerLane<std::int32_t> last_{};
  PerLane<const float*> sums_before_{};  // of the device that takes it
  PerLane<const float*> contribution_{};
  PerLane<float*> sums_after_{};
  PerLane<float> cost_after_{};  // ms
  PerLane<std::uint32_t> load_after_{};

  // The loads of the devices now, [devices][kLanes].
  AlignedVector<std::uint32_t> loads_of_devices_;  // indices into `loads`
  AlignedVector<float> cost_;
  AlignedVector<float> rounded_memory_;
  AlignedVector<float> rounded_output_dims_;

  AlignedVector<float> nowhere_;  // zeros: sums and contribution of lanes that place nothing
};

}  // namespace neuroshard
