#pragma once

#include <optional>

#include "cost_networks.hpp"
#include "interrupt.hpp"
#include "plan.hpp"
#include "problem.hpp"

namespace neuroshard {

/// The cheapest of all plans with at most so many splits, and its cost by PlanObjective.
struct BestOfAll {
  Plan plan;
  double objective;
};

/// Looks at every plan: to measure other searches by, where there are few shards. Nothing where no
/// plan keeps the memory. Throws std::invalid_argument where there would be too many plans, or the
/// networks do not suit the problem; and Interrupted.
std::optional<BestOfAll> exhaustive_search(const CostNetworks& networks, const Problem& problem,
                                           int max_splits, Interrupt& interrupt);

}  // namespace neuroshard
