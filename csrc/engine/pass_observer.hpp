#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "shard_catalog.hpp"

namespace neuroshard {

/// Is told of every greedy pass that the search has run, for counting what the search does.
class PassObserver {
 public:
  struct Pass {
    std::span<const ShardCatalog::Kind> shards;  // in the order in which they are placed
    std::vector<int> devices;  // of the shards placed; fewer than shards if no device took the next
    std::size_t taken_over;    // of these, placed by an earlier pass already
  };

  PassObserver() = default;
  PassObserver(const PassObserver&) = delete;
  PassObserver& operator=(const PassObserver&) = delete;
  virtual ~PassObserver() = default;

  /// Called on the thread that ran the pass.
  virtual void finished(const Pass& pass) = 0;
};

}  // namespace neuroshard
