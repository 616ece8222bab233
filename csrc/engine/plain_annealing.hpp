#pragma once

#include <cstdint>
#include <functional>

#include "cost_networks.hpp"
#include "interrupt.hpp"
#include "problem.hpp"
#include "split_plan.hpp"

namespace neuroshard {

/// The best plan of an annealing, and its cost by PlanObjective, ms.
struct Annealed {
  SplitsAndPlacement plan;
  double objective = 0.0;
  std::int64_t evaluations = 0;
};

/// Plain simulated annealing with the cost of plans as objective: to measure other searches by.
///
/// kLanes chains go on from a plan, each with one change drawn at random in each step, all changes
/// alike: a shard to another device, two shards trading places, one split, pieces put together. It
/// shares no estimate and no choice with the automatic search. `progress` tells how much of its
/// time is over, from 0 to 1. Throws std::invalid_argument for an unsuitable plan, and Interrupted.
Annealed plain_annealing(const CostNetworks& networks, const Problem& problem,
                         const SplitsAndPlacement& start, int max_splits, std::uint64_t seed,
                         const std::function<double()>& progress, Interrupt& interrupt);

}  // namespace neuroshard
