#pragma once

#include "cost_networks.hpp"
#include "interrupt.hpp"
#include "problem.hpp"

namespace neuroshard {

/// What no plan with at most `max_splits` splits can cost less than by PlanObjective, ms, given
/// that there is one that costs `upper`; never more than `upper`. It may be below 0, and is
/// -infinity where nothing is known.
///
/// For shared communication networks of two layers each, and a set network of two. For networks of
/// the published kind only intervals of what they can give at all are known, so that the bound is
/// of little use and often below 0; for other depths nothing is known.
///
/// Memory caps, and what is pinned, are left out of account: they only take plans away. The bound
/// holds for what the engine computes in fp32. The same for any instruction set.
///
/// Throws std::invalid_argument where `upper` is not finite, `max_splits` is below 0 or the
/// networks do not suit the problem; and Interrupted.
double lower_bound(const CostNetworks& networks, const Problem& problem, double upper,
                   int max_splits, Interrupt& interrupt);

}  // namespace neuroshard
