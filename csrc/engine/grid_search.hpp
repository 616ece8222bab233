#pragma once

#include <atomic>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "aligned.hpp"
#include "cost_networks.hpp"
#include "greedy_passes.hpp"
#include "interrupt.hpp"
#include "pass_observer.hpp"
#include "plan_cost.hpp"
#include "problem.hpp"
#include "shard_catalog.hpp"

namespace neuroshard {

/// Table-wise search: greedy passes under a grid of limits on the output dim of a device.
/// One object serves one thread.
class GridSearch {
 public:
  using Shards = std::span<const ShardCatalog::Kind>;  // in the order in which they are placed

  /// The cheapest plan for some shards.
  struct Result {
    double cost = std::numeric_limits<double>::infinity();  // ms; infinite if there is no plan
    std::size_t step = 0;                                   // of the grid, the first that finds it
    std::size_t placed = 0;  // shards, by the pass under the highest limit
  };

  GridSearch(const CostNetworks& networks, const Problem& problem, const ShardCatalog& catalog,
             int grid_steps, Interrupt& interrupt, PassObserver observer);

  /// Finds the plans of the tasks from `next` on, which others take tasks from too; `tasks[i]` gets
  /// `results[i]`. Takes more than `fair_share` of them only where nothing else is left to do.
  ///
  /// A task is done by one worker, so no other writes its result. Its lanes may find plans in any
  /// order: which is the cheapest, and of equals that of the lowest step, does not depend on it.
  void run(std::span<const Shards> tasks, std::atomic<std::size_t>& next, std::size_t fair_share,
           std::span<Result> results);

  /// The device of each shard in the plan that a step of the grid finds.
  std::vector<int> devices(Shards shards, std::size_t step, Interrupt& interrupt);

 private:
  struct Trial {
    std::size_t task = 0;
    std::size_t step = 0;  // of the limit being tried; of a plan kept, the lowest that gives it
    std::size_t last = 0;  // the lowest step that the lane has to try
    bool under_way = false;
  };

  /// Keeps the plan that a lane has found, if it has, and skips the limits that give the same one.
  void keep_plan(std::size_t lane, std::span<Result> results);

  /// Goes on to the next lower limit in a lane; false if there is none.
  bool lower_limit(std::size_t lane);

  /// Takes over the lower half of the limits that another lane has still to try; false if there is
  /// no such lane. Of a task just begun, that is half of all limits.
  bool share(std::size_t lane);

  /// Tells the observer of the pass that has ended in a lane.
  void report(std::size_t lane);

  void evaluate_plans(std::span<Result> results);

  const std::size_t steps_;  // of the grid, with ascending limits
  Interrupt& interrupt_;
  PassObserver observer_;
  GreedyPasses passes_;
  PerLane<Trial> trials_;  // that the lanes of `passes_` are at

  // Plans found whose costs are still to be computed, kLanes at once.
  std::vector<Trial> plans_;
  AlignedVector<float> compute_;      // [devices][kLanes], ms
  AlignedVector<float> output_dims_;  // [devices][kLanes], fp32 numbers a sample
  PlanCost plan_cost_;
};

}  // namespace neuroshard
