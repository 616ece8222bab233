#include "search_counts.hpp"

#include <algorithm>

#include "engine/interrupt.hpp"
#include "engine/spread.hpp"

namespace neuroshard::bench {

namespace {

using Key = DistinctKeys::Key;

/// The key of a sequence that is one number longer.
Key append(const Key& key, std::uint64_t number) {
  return {spread(key.first + number), spread(key.second ^ spread(~number))};
}

/// The key of a set that holds one more number; the order does not matter.
Key insert(const Key& key, std::uint64_t number) {
  return {key.first + spread(number), key.second + spread(~number)};
}

class Counter {
 public:
  explicit Counter(int devices) : devices_(static_cast<std::size_t>(devices)) {}

  void add(const FinishedPass& pass) {
    counts_.placements += pass.devices.size() - pass.taken_over;
    std::fill(devices_.begin(), devices_.end(), Key{});
    Key placed{};
    for (std::size_t i = 0; i < pass.devices.size(); ++i) {
      const auto kind = static_cast<std::uint64_t>(pass.shards[i]);
      const auto device = static_cast<std::size_t>(pass.devices[i]);
      devices_[device] = insert(devices_[device], kind);
      if (i >= pass.taken_over) {
        placements_.add(append(placed, kind));
        sets_.add(devices_[device]);
      }
      placed = append(append(placed, kind), device);
    }
    if (pass.devices.size() < pass.shards.size()) {  // no device took the next shard
      placements_.add(append(placed, static_cast<std::uint64_t>(pass.shards[pass.devices.size()])));
    } else {
      ++counts_.plans;
      plans_.add(placed);
    }
    for (const ShardCatalog::Kind kind : pass.shards) {  // the order needs what each costs alone
      if (const auto i = static_cast<std::size_t>(kind); i >= seen_.size() || !seen_[i]) {
        seen_.resize(std::max(seen_.size(), i + 1));
        seen_[i] = true;
        sets_.add(insert({}, i));
      }
    }
  }

  SearchCounts counts() {
    counts_.distinct_placements = placements_.count();
    counts_.distinct_sets = sets_.count();
    counts_.distinct_plans = plans_.count();
    return counts_;
  }

 private:
  SearchCounts counts_;
  std::vector<Key> devices_;  // what each holds
  std::vector<bool> seen_;    // kinds
  DistinctKeys placements_;
  DistinctKeys sets_;
  DistinctKeys plans_;
};

}  // namespace

void DistinctKeys::add(Key key) {
  keys_.push_back(key);
  if (keys_.size() >= next_tidying_) {
    forget_doubles();
    next_tidying_ = std::max(next_tidying_, 2 * keys_.size());
  }
}

std::size_t DistinctKeys::count() {
  forget_doubles();
  return keys_.size();
}

void DistinctKeys::forget_doubles() {
  std::sort(keys_.begin(), keys_.end());
  keys_.erase(std::unique(keys_.begin(), keys_.end()), keys_.end());
}

SearchCounts count(const CostNetworks& networks, const Problem& problem, SearchOptions options) {
  options.threads = 1;
  Counter counter(problem.devices());
  Interrupt never;
  search(networks, problem, options, never, [&](const FinishedPass& pass) { counter.add(pass); });
  return counter.counts();
}

}  // namespace neuroshard::bench
