#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/cost_networks.hpp"
#include "engine/problem.hpp"
#include "engine/search.hpp"

namespace neuroshard::bench {

/// What a search does, and the least that any implementation of the method has to do.
struct SearchCounts {
  std::size_t placements = 0;           // shards put on a device = evaluations of the set network
  std::size_t distinct_placements = 0;  // (what is placed where, next shard) that passes come to
  std::size_t distinct_sets = 0;        // sets of shard kinds on a device whose cost is needed
  std::size_t plans = 0;                // finished passes, which the communication networks cost
  std::size_t distinct_plans = 0;
};

/// Counts in a search of its own, on one thread.
SearchCounts count(const CostNetworks& networks, const Problem& problem, SearchOptions options);

/// Counts different keys in bounded memory. The keys are hashes of 128 bits, taken for what they
/// stand for.
class DistinctKeys {
 public:
  using Key = std::pair<std::uint64_t, std::uint64_t>;

  void add(Key key);
  std::size_t count();

 private:
  void forget_doubles();

  std::vector<Key> keys_;
  std::size_t next_tidying_ = std::size_t{1} << 20;
};

}  // namespace neuroshard::bench
