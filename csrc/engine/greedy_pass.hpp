#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "aligned.hpp"
#include "cost_networks.hpp"
#include "interrupt.hpp"
#include "problem.hpp"
#include "shard_catalog.hpp"

namespace neuroshard {

/// Places shards one after the other, each on the device whose predicted compute cost is lowest so
/// far, under one limit after another.
///
/// A device takes a shard if the shard fits in its memory and the sum of its output dims stays
/// within the limit. Under a higher limit the same happens until the first shard for which a better
/// device is open that was not before. The pass therefore notes, while it runs under one limit, the
/// place at which each of the higher ones first differs, and goes on from there for them.
/// One object serves one thread.
class GreedyPass {
 public:
  GreedyPass(const CostNetworks& networks, const Problem& problem, const ShardCatalog& catalog,
             Interrupt& interrupt);

  /// Places the shards of these kinds, in this order, under the first of the limits, which ascend.
  /// Both are kept by reference.
  void start(std::span<const ShardCatalog::Kind> shards_in_order,
             std::span<const double> output_dim_limits);

  /// Places them under the next limit that gives something else; false if none of them does.
  bool next();

  /// Whether all shards have found a device.
  bool complete() const { return device_.size() == shards_in_order_.size(); }

  /// Device of each shard placed, in the order given.
  std::span<const int> devices() const { return device_; }

  /// Compute cost of each device, in ms; where nothing is placed, that is what the network gives for
  /// nothing, not 0.
  std::span<const float> device_costs();

  /// Sum of the output dims on each device, in fp32 numbers a sample.
  std::span<const double> output_dims() const { return devices_.output_dim_sum; }

 private:
  /// All devices with what is placed on them.
  struct Devices {
    // By rank: the device to be taken first comes first.
    std::vector<int> ranking;
    AlignedVector<float> cost;  // as the pass compares it, ms; padded to whole blocks with infinity

    // By device.
    std::vector<std::int64_t> memory;    // bytes
    std::vector<double> output_dim_sum;  // fp32 numbers a sample
    AlignedVector<float> sums;           // [devices][sums of the set network]
  };

  /// The devices as they were before a placement from which on higher limits give something else.
  struct Snapshot {
    Devices devices;
    std::size_t placed;     // shards that are on them
    std::size_t low, high;  // the limits from `low` to below `high` go on from here
  };

  struct Choice {
    std::size_t rank;     // of the device; the number of devices if none is open
    double better_limit;  // smallest limit that opens a better device, infinite if none does
  };

  void clear_devices();
  void place(std::size_t limit);
  Choice choose(ShardCatalog::Kind kind, double output_dim_limit) const;
  void put(ShardCatalog::Kind kind, std::size_t rank);
  void rank_anew(std::size_t rank, float cost);
  bool precedes(int a, int b) const;
  void take_snapshots(double better_limit, std::size_t limit);

  const CostNetworks& networks_;
  const Problem& problem_;
  const ShardCatalog& catalog_;
  Interrupt& interrupt_;
  SetNetwork::Workspace workspace_;

  std::span<const ShardCatalog::Kind> shards_in_order_;
  std::span<const double> limits_;
  Devices devices_;
  std::vector<Snapshot> snapshots_;  // the later the placement, the lower the limits
  std::size_t snapshots_used_ = 0;   // of the vector, which keeps its memory
  std::size_t most_snapshots_;

  // One value for each shard placed, in order.
  std::vector<int> device_;
  std::vector<float> cost_after_;  // of that device, ms

  std::vector<float> device_costs_;  // what the function of that name gives, ms
};

}  // namespace neuroshard
