#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "shard_catalog.hpp"

namespace neuroshard {

/// A greedy pass that the search has run.
struct FinishedPass {
  std::span<const ShardCatalog::Kind> shards;  // in the order in which they are placed
  // Of the shards placed, which are fewer if no device took the next.
  std::span<const std::int32_t> devices;
  std::size_t taken_over;  // of these, placed by an earlier pass already
};

/// Is told of every pass, on the thread that ran it, for counting what the search does. May be
/// empty.
using PassObserver = std::function<void(const FinishedPass&)>;

}  // namespace neuroshard
