#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cost_networks.hpp"
#include "interrupt.hpp"
#include "plan.hpp"
#include "problem.hpp"

namespace neuroshard {

/// A shard of the plan before: columns of a table, on the device that holds them.
struct KeptShard {
  int table;
  std::int64_t column_offset;
  std::int64_t width;
  int device;          // kLost where none holds them any more
  std::int64_t bytes;  // that move with it

  static constexpr int kLost = -1;
};

/// How far a plan may be from the one before.
struct ReplanOptions {
  double most_moved = 0.0;  // bytes that leave the device that holds them
  int max_splits = 10;      // of the plan, unless the one before has more
  std::uint64_t seed = 0;
  // Of PlanObjective; where there is none, so many as take some milliseconds.
  std::optional<std::int64_t> evaluations;
};

struct Replanned {
  Plan plan;
  double objective;  // by PlanObjective, ms
  double moved;      // bytes
  std::int64_t evaluations;
};

/// The cheapest plan found of which no more than so many bytes move. Tables without kept shards are
/// new: they are placed wherever it is cheapest, as is what is lost. Nothing where none was found
/// that keeps the memory. Throws std::invalid_argument for shards that are not the columns of their
/// table, or not made by its splits, and as `search` does; and Interrupted.
std::optional<Replanned> replan(const CostNetworks& networks, const Problem& problem,
                                const std::vector<KeptShard>& kept, const ReplanOptions& options,
                                Interrupt& interrupt);

}  // namespace neuroshard
