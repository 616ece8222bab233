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
/// sum of its output dims stays within a limit.
///
/// kLanes passes run side by side: the steps of one pass wait for each other, those of different
/// passes do not, and vector registers take them together. One object serves one thread.
class GreedyPasses {
 public:
  /// Keeps references to networks and catalog.
  GreedyPasses(const CostNetworks& networks, const Problem& problem, const ShardCatalog& catalog);

  /// Starts a pass in a lane: shards in the order in which they are placed, and the limit.
  void start(std::size_t lane, std::span<const ShardCatalog::Kind> shards, double output_dim_limit);

  /// Starts the pass of lane `from` in lane `to`, which may be the same, under a lower limit. What
  /// is placed stays as far as the devices chosen were open under that limit: they were the best of
  /// more, so they are the best.
  void start_from(std::size_t from, std::size_t to, double output_dim_limit);

  /// Places the next shard in every running pass. A pass stops when all its shards are placed or no
  /// device is open.
  void step();

  bool running(std::size_t lane) const { return running_[lane]; }

  /// Whether all shards have been placed.
  bool complete(std::size_t lane) const { return placed_[lane] == shards_[lane].size(); }

  /// Device of each shard placed, in order.
  std::vector<int> devices(std::size_t lane) const;

  /// Shards that the pass did not place itself: `start_from` left them where they were.
  std::size_t taken_over(std::size_t lane) const { return taken_over_[lane]; }

  std::span<const ShardCatalog::Kind> shards(std::size_t lane) const { return shards_[lane]; }

  /// The highest sum of output dims that a device had after a placement: any limit from there on
  /// gives the same placements.
  double highest_output_dims(std::size_t lane) const { return highest_output_dims_[lane]; }

  /// Writes the compute cost, in ms, and the sum of output dims, in fp32 numbers a sample, of each
  /// device of a lane, one every kLanes floats. Where nothing is placed the cost is what the
  /// network gives for nothing, not 0.
  void device_loads(std::size_t lane, float* compute, float* output_dims) const;

 private:
  struct Placement {
    int device;
    float cost;          // of the device with this shard, ms
    double output_dims;  // of the device with this shard
  };

  void clear_devices(std::size_t lane);
  void choose();
  int choose_exactly(std::size_t lane, int first, int last) const;
  bool open(std::size_t lane, int device) const {
    const std::size_t i = at(lane, device);
    return memory_[i] <= memory_bytes_ - bytes_[lane] &&
           output_dims(i) + output_dim_[lane] <= output_dim_limit_[lane];
  }
  void put();
  void load_device(std::size_t lane, const Placement& placement, std::int64_t bytes);
  double output_dims(std::size_t i) const {
    return rounding_is_exact_ ? static_cast<double>(rounded_output_dims_[i])
                              : exact_output_dims_[i];
  }
  static std::size_t at(std::size_t lane, int device) {
    return static_cast<std::size_t>(device) * kLanes + lane;
  }
  float* sums(std::size_t lane, int device) {
    return sums_.data() + (lane * devices_ + static_cast<std::size_t>(device)) * nowhere_.size();
  }

  const Kernels& kernels_;
  const CostNetworks& networks_;
  const ShardCatalog& catalog_;
  const std::size_t devices_;
  const std::int64_t memory_bytes_;  // of a device
  const bool rounding_is_exact_;     // of output dims, as it is where all are whole numbers
  SetNetwork::Workspace workspace_;

  // Of each lane.
  PerLane<std::span<const ShardCatalog::Kind>> shards_;
  PerLane<std::vector<Placement>> placements_;  // of each shard, in order
  PerLane<std::size_t> placed_{};               // how many of them there are already
  PerLane<std::size_t> taken_over_{};           // of these
  PerLane<bool> running_{};
  PerLane<double> output_dim_limit_{};
  PerLane<double> highest_output_dims_{};

  // Of the next shard of each lane.
  PerLane<std::int64_t> bytes_{};
  PerLane<double> output_dim_{};
  PerLane<const float*> contribution_{};
  PerLane<float> rounded_memory_limit_{};  // of what a device that takes it holds already
  PerLane<float> rounded_output_dim_limit_{};
  PerLane<std::int32_t> first_{};  // device of the lowest cost, as far as rounding tells
  PerLane<std::int32_t> last_{};
  PerLane<std::int32_t> chosen_{};  // device for it, or -1
  PerLane<float*> sums_of_chosen_{};
  PerLane<float> cost_of_chosen_{};  // with the shard, ms

  // [devices][kLanes]
  AlignedVector<float> cost_;  // as the pass compares it, ms; 0 where nothing is placed
  AlignedVector<float> rounded_memory_;
  AlignedVector<float> rounded_output_dims_;
  AlignedVector<std::int64_t> memory_;       // bytes
  AlignedVector<double> exact_output_dims_;  // where rounding changes them
  AlignedVector<std::uint8_t> used_;         // whether anything is placed

  AlignedVector<float> sums_;     // of the set network, [kLanes][devices][its size]
  AlignedVector<float> nowhere_;  // zeros: sums and contribution of lanes that place nothing
};

}  // namespace neuroshard
