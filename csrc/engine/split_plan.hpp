#pragma once

#include <cstdint>
#include <vector>

#include "plan.hpp"
#include "problem.hpp"
#include "shard_catalog.hpp"

namespace neuroshard {

/// A shard and its device.
struct PlacedShard {
  ShardCatalog::Kind kind = 0;
  int device = 0;
  int origin = kNoOrigin;  // what it is cut from, which is only put together of such shards again

  static constexpr int kNoOrigin = -1;
};

/// A shard as it lay before: its columns stay together, or what is cut from it does.
struct Origin {
  static constexpr int kNone = -1;

  int device = kNone;             // that holds it; kNone where none does any more
  double bytes_per_column = 0.0;  // that go to another device with each column
};

/// A plan as the search for better ones changes it: which shards there are, and where, whatever
/// splits lead to them.
struct SplitPlan {
  std::vector<PlacedShard> shards;
  int splits = 0;
};

/// The plan of these splits and this placement, which have to suit the problem. `catalog` learns
/// the kinds of shards that it lacks.
SplitPlan to_split_plan(const Problem& problem, ShardCatalog& catalog,
                        const std::vector<std::int64_t>& column_splits, const Placement& placement);

/// Splits that lead to the shards of a plan, and their placement.
struct SplitsAndPlacement {
  std::vector<std::int64_t> column_splits;
  Placement placement;
};
SplitsAndPlacement from_split_plan(const Problem& problem, const ShardCatalog& catalog,
                                   const SplitPlan& plan);

}  // namespace neuroshard
