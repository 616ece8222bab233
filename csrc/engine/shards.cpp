#include "shards.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace neuroshard {

std::vector<Shard> split_shards(const Problem& problem,
                                std::span<const std::int64_t> column_splits) {
  std::vector<Shard> shards;
  shards.reserve(static_cast<std::size_t>(problem.tables()) + column_splits.size());
  for (int table = 0; table < problem.tables(); ++table) {
    shards.push_back({table, 0, problem.table_width(table)});
  }
  for (std::size_t step = 0; step < column_splits.size(); ++step) {
    const std::int64_t index = column_splits[step];
    const auto refuse = [&](const std::string& reason) {
      throw std::invalid_argument("column_splits[" + std::to_string(step) +
                                  "] = " + std::to_string(index) + ": " + reason);
    };
    if (index < 0 || std::cmp_greater_equal(index, shards.size())) {
      refuse("there are only " + std::to_string(shards.size()) + " shards");
    }
    Shard& shard = shards[static_cast<std::size_t>(index)];
    if (!can_split(shard.width)) {
      refuse("a shard of " + std::to_string(shard.width) +
             " columns cannot be split into halves of a multiple of 4 columns");
    }
    shard.width /= 2;
    shards.push_back({shard.table, shard.column_offset + shard.width, shard.width});
  }
  return shards;
}

void check_placement(const Placement& placement, int devices, std::size_t shards) {
  if (!std::cmp_equal(placement.size(), devices)) {
    throw std::invalid_argument("placement must have one list for each of the " +
                                std::to_string(devices) + " devices, it has " +
                                std::to_string(placement.size()));
  }
  std::vector<bool> placed(shards, false);
  for (std::size_t device = 0; device < placement.size(); ++device) {
    const auto refuse = [&](std::int64_t shard, const std::string& reason) {
      throw std::invalid_argument("placement[" + std::to_string(device) + "]: shard " +
                                  std::to_string(shard) + reason);
    };
    for (const std::int64_t shard : placement[device]) {
      if (shard < 0 || std::cmp_greater_equal(shard, shards)) {
        refuse(shard, " does not exist, there are " + std::to_string(shards));
      }
      if (placed[static_cast<std::size_t>(shard)]) {
        refuse(shard, " is placed twice");
      }
      placed[static_cast<std::size_t>(shard)] = true;
    }
  }
  const auto missing = std::find(placed.begin(), placed.end(), false);
  if (missing != placed.end()) {
    throw std::invalid_argument("placement: shard " + std::to_string(missing - placed.begin()) +
                                " is on no device");
  }
}

}  // namespace neuroshard
