#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cost_networks.hpp"
#include "interrupt.hpp"
#include "problem.hpp"
#include "shard_catalog.hpp"

namespace neuroshard {

/// Places shards one after the other, each on the device whose predicted compute cost is lowest so
/// far.
///
/// A device takes a shard if the shard fits in its memory and the sum of its output dims stays
/// within a limit.
/// The pass is run for one order of shards under rising limits. It notes for each placement from
/// which limit on a better device would have been open, so that a higher limit repeats only what it
/// changes. One object serves one thread.
class GreedyPass {
 public:
  GreedyPass(const CostNetworks& networks, const Problem& problem, const ShardCatalog& catalog,
             Interrupt& interrupt);

  /// Places the shards of these kinds, in this order, under the limit. True if all found a device.
  bool run(std::span<const ShardCatalog::Kind> shards_in_order, double output_dim_limit);

  /// True if a limit, not below the last one, gives the same placement as the last one.
  bool same_under(double output_dim_limit) const { return output_dim_limit < changes_at_; }

  /// The pass again, for the same order, under a limit not below the last one.
  bool rerun(double output_dim_limit);

  /// Device of each shard, in the order given.
  std::span<const int> devices() const { return device_; }

  /// Asks the network for the compute cost of each device, in ms; where nothing is placed, that is
  /// what the network gives for nothing, not 0.
  std::span<const float> device_costs();

  /// Sum of the output dims on each device, in fp32 numbers a sample.
  std::span<const double> output_dims() const { return output_dim_sum_; }

 private:
  struct Choice {
    int device;           // kNone if no device is open
    double better_limit;  // smallest limit that opens a better device, infinite if none does
  };
  static constexpr int kNone = -1;

  void clear_devices();
  Choice choose(ShardCatalog::Kind kind, double output_dim_limit) const;
  bool precedes(std::size_t a, std::size_t b) const;
  void add_to_device(std::size_t device, ShardCatalog::Kind kind);
  bool place_from(std::size_t position, double output_dim_limit);
  std::span<float> encoding_sum(std::size_t device);

  const CostNetworks& networks_;
  const Problem& problem_;
  const ShardCatalog& catalog_;
  Interrupt& interrupt_;
  Network::Workspace workspace_;

  // One value for each device.
  std::vector<float> cost_;             // as the pass compares it, ms; 0 where nothing is placed
  std::vector<bool> empty_;             // whether nothing is placed
  std::vector<std::int64_t> memory_;    // bytes
  std::vector<double> output_dim_sum_;  // fp32 numbers a sample
  std::vector<float> encoding_sums_;    // [devices][encoding size]
  std::vector<float> device_costs_;     // what the function of that name gives, ms

  // One value for each shard placed, in order.
  std::span<const ShardCatalog::Kind> shards_in_order_;
  std::vector<int> device_;
  std::vector<float> cost_after_;     // of that device, ms
  std::vector<double> better_limit_;  // see Choice
  double changes_at_ = 0.0;           // smallest of better_limit_
};

}  // namespace neuroshard
