#pragma once

#include <memory>
#include <vector>

#include "aligned.hpp"
#include "communication.hpp"
#include "cost_networks.hpp"
#include "interrupt.hpp"
#include "kernels/kernels.hpp"
#include "plan.hpp"
#include "problem.hpp"
#include "shard_catalog.hpp"

namespace neuroshard {

/// From what the devices compute and send to the cost of plans. One object serves one thread.
class PlanCost {
 public:
  PlanCost(const CostNetworks& networks, int devices);

  /// Costs of kLanes plans in ms, infinite where a network gives, or were to take, no finite
  /// number. `compute` (ms) and `output_dims` (fp32 numbers a sample) are [devices][kLanes].
  PerLane<double> evaluate(const float* compute, const float* output_dims);

  /// Costs of a device in the plans evaluated last, in ms, [devices][kLanes].
  const AlignedVector<float>& forward() const { return forward_; }
  const AlignedVector<float>& backward() const { return backward_; }

 private:
  std::unique_ptr<CommunicationCosts> communication_;
  AlignedVector<double> busy_;     // compute + backward, [devices][kLanes]
  AlignedVector<float> starts_;    // [devices][kLanes]
  AlignedVector<float> forward_;   // [devices][kLanes]
  AlignedVector<float> backward_;  // [devices][kLanes]
};

/// Some columns of a table; which ones makes no difference to any cost.
struct TableColumns {
  int table;
  std::int64_t width;
};

/// Predicted costs of a plan. Throws std::invalid_argument where the splits are impossible, the
/// placement does not hold every shard once, or no finite cost comes out; and Interrupted. Memory
/// caps are not checked.
Plan evaluate_plan(const CostNetworks& networks, const Problem& problem,
                   std::vector<std::int64_t> column_splits, Placement placement,
                   Interrupt& interrupt);

/// The same with a catalog of this problem that is there already; learns the pieces it lacks.
Plan evaluate_plan(const CostNetworks& networks, const Problem& problem, ShardCatalog& catalog,
                   std::vector<std::int64_t> column_splits, Placement placement,
                   Interrupt& interrupt);

/// Predicted costs where each device holds these columns, whatever splits lead to them: splits and
/// placement of the result are empty. Throws std::invalid_argument unless every column of every
/// table is on a device once and every width is a multiple of 4, and as evaluate_plan does.
Plan evaluate_shards(const CostNetworks& networks, const Problem& problem,
                     const std::vector<std::vector<TableColumns>>& devices, Interrupt& interrupt);

}  // namespace neuroshard
