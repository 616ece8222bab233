#pragma once

#include <span>
#include <vector>

#include "cost_networks.hpp"
#include "interrupt.hpp"
#include "plan.hpp"
#include "problem.hpp"
#include "shard_catalog.hpp"

namespace neuroshard {

/// From what the devices compute and send to the cost of the plan. One object serves one thread.
class PlanCost {
 public:
  PlanCost(const CostNetworks& networks, int devices);

  /// Cost of the plan in ms, infinite where a network gives, or were to take, no finite number.
  /// `compute` (ms) and `output_dims` (fp32 numbers a sample) hold one value for each device.
  double evaluate(std::span<const float> compute, std::span<const double> output_dims);

  /// Costs of each device in the last plan evaluated, in ms.
  std::span<const float> forward() const { return forward_; }
  std::span<const float> backward() const { return backward_; }

 private:
  const CostNetworks::Communication& networks_;
  Network::Workspace workspace_;
  std::vector<float> input_;     // [output dims, start times]
  std::vector<double> busy_;     // compute + backward of each device
  std::vector<float> forward_;   // of each device
  std::vector<float> backward_;  // of each device
};

/// Predicted costs of a plan. Throws std::invalid_argument where the splits are impossible, the
/// placement does not hold every shard once, or no finite cost comes out; and Interrupted. Memory
/// caps are not checked.
Plan evaluate_plan(const CostNetworks& networks, const Problem& problem,
                   std::vector<std::int64_t> column_splits, Placement placement,
                   Interrupt& interrupt);

/// The same with a catalog of this problem that is there already; learns the halves it lacks.
Plan evaluate_plan(const CostNetworks& networks, const Problem& problem, ShardCatalog& catalog,
                   std::vector<std::int64_t> column_splits, Placement placement,
                   Interrupt& interrupt);

}  // namespace neuroshard
