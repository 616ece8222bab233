#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "cost_networks.hpp"
#include "greedy_passes.hpp"
#include "interrupt.hpp"
#include "plan_cost.hpp"
#include "problem.hpp"
#include "shard_catalog.hpp"

namespace neuroshard {

/// Whether a greedy pass takes shard `a` of these before shard `b`: the shard that alone is dearer
/// goes first, among equals the one of the later index.
bool placed_before(const ShardCatalog& catalog, std::span<const ShardCatalog::Kind> shards, int a,
                   int b);

/// Indices into `shards` in the order in which a greedy pass takes them.
std::vector<int> placement_order(const ShardCatalog& catalog,
                                 std::span<const ShardCatalog::Kind> shards);

/// Table-wise search: greedy passes under a grid of limits on the output dim of a device.
/// One object serves one thread.
class GridSearch {
 public:
  /// One greedy pass.
  struct Trial {
    std::span<const ShardCatalog::Kind> shards;  // in the order in which they are placed
    std::size_t step;                            // of the grid
  };

  GridSearch(const CostNetworks& networks, const Problem& problem, const ShardCatalog& catalog,
             int grid_steps, Interrupt& interrupt);

  /// Writes the cost of the plan that each trial finds, in ms, infinite if it finds none. Up to
  /// kLanes trials with the same number of shards.
  void evaluate(std::span<const Trial> trials, double* costs);

  /// The device of each shard in the plan that the trial finds.
  std::vector<int> devices(const Trial& trial);

 private:
  void run(std::span<const Trial> trials);

  std::vector<double> output_dim_limits_;  // by step; fp32 numbers a sample
  GreedyPasses passes_;
  PlanCost plan_cost_;
};

}  // namespace neuroshard
