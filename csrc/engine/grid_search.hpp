#pragma once

#include <limits>
#include <span>
#include <vector>

#include "cost_networks.hpp"
#include "greedy_pass.hpp"
#include "interrupt.hpp"
#include "plan_cost.hpp"
#include "problem.hpp"
#include "shard_catalog.hpp"

namespace neuroshard {

/// Whether the greedy pass takes shard `a` of these before shard `b`: the shard that alone is
/// dearer goes first, among equals the one of the later index.
bool placed_before(const ShardCatalog& catalog, std::span<const ShardCatalog::Kind> shards, int a,
                   int b);

/// Indices into `shards` in the order in which the greedy pass takes them.
std::vector<int> placement_order(const ShardCatalog& catalog,
                                 std::span<const ShardCatalog::Kind> shards);

/// Table-wise search: greedy passes under a grid of limits on the output dim of a device.
/// One object serves one thread.
class GridSearch {
 public:
  struct Result {
    double cost = std::numeric_limits<double>::infinity();  // ms; infinite if no plan was found
    std::vector<int> devices;                               // of each shard, in the order given
  };

  GridSearch(const CostNetworks& networks, const Problem& problem, const ShardCatalog& catalog,
             int grid_steps, Interrupt& interrupt);

  /// The cheapest plan for shards of these kinds, placed in this order.
  Result best(std::span<const ShardCatalog::Kind> shards_in_order);

 private:
  std::vector<double> output_dim_limits_;  // of a device, fp32 numbers a sample, ascending
  GreedyPass pass_;
  PlanCost plan_cost_;
};

}  // namespace neuroshard
