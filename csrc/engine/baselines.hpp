#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "interrupt.hpp"
#include "plan.hpp"
#include "problem.hpp"

namespace neuroshard {

/// Places unsplit tables, pinned ones first, then in descending order of `key`, one number for each
/// table, each on the device of the lowest sum of keys among those that have memory for it (equal
/// sums: less memory used, then lower index). Equal keys: the larger table goes first, then the
/// later index. A table that fits on no device goes to the last one, over its cap, as in the
/// published code. Throws std::invalid_argument for unusable keys, and Interrupted.
Placement greedy_baseline(const Problem& problem, std::span<const double> key,
                          Interrupt& interrupt);

/// A random placement of the unsplit tables that keeps every constraint, the same for the same
/// seed; nothing if none is found in a bounded number of tries. Throws Interrupted.
std::optional<Placement> random_placement(const Problem& problem, std::uint64_t seed,
                                          Interrupt& interrupt);

}  // namespace neuroshard
