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
  /// Keeps references to networks and catalog. The limits ascend; elsewhere here a limit is named
  /// by its index.
  GreedyPasses(const CostNetworks& networks, const Problem& problem, const ShardCatalog& catalog,
               std::vector<double> output_dim_limits);

  /// Starts a pass in a lane: shards in the order in which they are placed, and the limit.
  void start(std::size_t lane, std::span<const ShardCatalog::Kind> shards, std::size_t limit);

  /// Starts the pass of lane `from`, which may have ended or be under way, in lane `to`, which may
  /// be the same, under a limit that is not higher. What is placed stays as far as the devices
  /// chosen were open under that limit: they were the best of more, so they are the best.
  void start_from(std::size_t from, std::size_t to, std::size_t limit);

  /// Places the next shard in every running pass. A pass stops when all its shards are placed or no
  /// device is open.
  void place_next();

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
  std::size_t lowest_limit(std::size_t lane) const {
    return passes_[lane].loads[passes_[lane].last_load].limit;
  }

  /// Writes the compute cost, in ms, and the sum of output dims, in fp32 numbers a sample, of each
  /// device of a lane, one every kLanes floats. Where nothing is placed the cost is what the
  /// network gives for nothing, not 0.
  void device_loads(std::size_t lane, float* compute, float* output_dims) const;

 private:
  /// What a device holds, or held last before the pass needed a higher limit.
  struct Load {
    std::int64_t memory = 0;   // bytes
    double output_dims = 0.0;  // fp32 numbers a sample
    float cost = 0.0F;         // as the pass compares it, ms; 0 where nothing is held
    std::int32_t device = 0;
    std::uint32_t before = 0;  // index of the load of the device that this one replaced
    std::uint32_t limit = 0;   // the lowest one that allows all placements up to here
    std::size_t placed = 0;    // shards placed before the one that began this load
  };

  struct Pass {
    std::span<const ShardCatalog::Kind> shards;
    std::vector<std::int32_t> devices;  // of each shard
    std::size_t placed = 0;             // how many of them are on devices
    std::size_t taken_over = 0;
    double output_dim_limit = 0.0;
    bool running = false;
    // loads[0] is a device that holds nothing; then come those of devices that tables are pinned
    // to, which no pass changes. The others are in the order in which they began, so
    // their limits ascend. A placement that the lowest limit so far allows, on a device whose load
    // began under that same limit, changes the load in place: no pass goes back to between the two,
    // since every limit that allows the first allows the second. Any other placement begins a new
    // load. So a device has at most one load for each limit, and to go back to a lower limit is to
    // drop the last loads while theirs is higher; the earliest of these began with the first
    // placement that the lower limit forbids.
    std::vector<Load> loads;
    std::uint32_t last_load = 0;  // what follows is not in use
    AlignedVector<float> sums;    // of the set network, [loads][its size]

    // Of the next shard.
    std::int64_t bytes = 0;
    double output_dim = 0.0;
  };

  void make_initial_loads(const Problem& problem);
  void reset(std::size_t lane, std::span<const ShardCatalog::Kind> shards);
  void copy(std::size_t from, std::size_t to);
  void go_back(std::size_t lane, std::size_t limit);
  void prepare(std::size_t lane);
  void settle(std::size_t lane);
  bool open(const Pass& pass, int device, const Load& load) const {
    return load.memory <= memory_bytes_[static_cast<std::size_t>(device)] - pass.bytes &&
           load.output_dims + pass.output_dim <= pass.output_dim_limit;
  }
  int choose_exactly(std::size_t lane, int first, int last) const;
  void show(std::size_t lane, int device, std::uint32_t index);
  static std::size_t at(std::size_t lane, int device) {
    return static_cast<std::size_t>(device) * kLanes + lane;
  }

  const CostNetworks& networks_;
  const ShardCatalog& catalog_;
  const std::size_t devices_;
  const std::vector<std::int64_t> memory_bytes_;  // of each device
  const std::int64_t most_memory_bytes_;          // of any device
  const std::vector<double> output_dim_limits_;   // of a device, fp32 numbers a sample
  SetNetwork::Workspace workspace_;

  // What every pass begins with.
  std::vector<Load> initial_loads_;                // as in Pass
  std::vector<float> initial_sums_;                // likewise
  std::vector<std::uint32_t> initial_of_devices_;  // indices into these

  PerLane<Pass> passes_;

  // Of the next shard of each lane.
  PerLane<float> rounded_memory_limit_{};  // of `rounded_memory_` of a device that takes it
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
  AlignedVector<float> rounded_memory_;  // and what the device has less than the largest one
  AlignedVector<float> rounded_output_dims_;

  AlignedVector<float> nowhere_;  // zeros: sums and contribution of lanes that place nothing
};

}  // namespace neuroshard
