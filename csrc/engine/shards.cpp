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
    const std::int64_t pieces = problem.pieces(shard.table, shard.width);
    if (pieces == 1) {
      refuse(
          "a shard of " + std::to_string(shard.width) +
          (problem.kept_whole(shard.table, shard.width)
               ? " columns of table " + std::to_string(shard.table) +
                     " must not be split: least_widths, split_widths, pinned or its width forbid it"
               : " columns cannot be split into halves of a multiple of 4 columns"));
    }
    shard.width /= pieces;
    const Shard first = shard;  // the list may move
    for (std::int64_t piece = 1; piece < pieces; ++piece) {
      shards.push_back({first.table, first.column_offset + piece * first.width, first.width});
    }
  }
  return shards;
}

Placement pinned_placement(const Problem& problem) {
  Placement placement(static_cast<std::size_t>(problem.devices()));
  for (int table = 0; table < problem.tables(); ++table) {
    if (problem.pinned(table) != Problem::kAnyDevice) {
      placement[static_cast<std::size_t>(problem.pinned(table))].push_back(table);
    }
  }
  return placement;
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

void check_constraints(const Problem& problem, std::span<const Shard> shards,
                       const Placement& placement) {
  for (std::size_t device = 0; device < placement.size(); ++device) {
    std::int64_t left = problem.memory_bytes(static_cast<int>(device));
    for (const std::int64_t index : placement[device]) {
      const Shard& shard = shards[static_cast<std::size_t>(index)];
      const std::int64_t pinned = problem.pinned(shard.table);
      if (pinned != Problem::kAnyDevice && !std::cmp_equal(pinned, device)) {
        throw std::invalid_argument("placement[" + std::to_string(device) + "]: table " +
                                    std::to_string(shard.table) + " is pinned to device " +
                                    std::to_string(pinned));
      }
      left -= problem.shard_bytes(shard.table, shard.width);
      if (left < 0) {
        throw std::invalid_argument("placement[" + std::to_string(device) +
                                    "]: its shards are larger than the memory of the device");
      }
    }
  }
}

}  // namespace neuroshard
