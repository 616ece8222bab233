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
/// then; one half stays in place, the other is appended. Throws std::invalid_argument for an
/// impossible split.
std::vector<Shard> split_shards(const Problem& problem,
                                std::span<const std::int64_t> column_splits);

/// Throws std::invalid_argument unless `placement` has a list for each device, and each of so many
/// `shards` is in one of them, once.
void check_placement(const Placement& placement, int devices, std::size_t shards);

}  // namespace neuroshard
