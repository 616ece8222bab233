#pragma once

#include <cstdint>
#include <span>
#include <vector>

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

}  // namespace neuroshard
