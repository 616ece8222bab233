#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "plan.hpp"
#include "problem.hpp"

namespace neuroshard {

/// Columns `column_offset` … `column_offset + width - 1` of a table.
struct Shard {
  int table;
  std::int64_t column_offset;
  std::int64_t width;
};

/// The shards after a split sequence: each entry is the index of a shard in the list as it stands
/// then; its first piece stays in place, the others are appended. Throws std::invalid_argument for
/// an impossible split.
std::vector<Shard> split_shards(const Problem& problem,
                                std::span<const std::int64_t> column_splits);

/// A placement of those tables that are pinned, in their order.
Placement pinned_placement(const Problem& problem);

/// Throws std::invalid_argument unless `placement` has a list for each device, and each of so many
/// `shards` is in one of them, once.
void check_placement(const Placement& placement, int devices, std::size_t shards);

/// Throws std::invalid_argument where a device of a placement that passed the check above holds
/// more than its memory, or a pinned table is on another device.
void check_constraints(const Problem& problem, std::span<const Shard> shards,
                       const Placement& placement);

}  // namespace neuroshard
