#include "shard_catalog.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <stdexcept>
#include <string>

namespace neuroshard {

ShardCatalog::ShardCatalog(const CostNetworks& networks, const Problem& problem, Workers& workers,
                           Interrupt& interrupt)
    : networks_(networks), problem_(problem) {
  if (problem.features() != networks.features()) {
    throw std::invalid_argument("features: the cost networks take " +
                                std::to_string(networks.features()) + " features of a table, got " +
                                std::to_string(problem.features()));
  }
  for (int table = 0; table < problem.tables(); ++table) {
    add(table, problem.table_width(table), kNone);
  }
  make_room();
  // Workers pay only where each has many tables to encode, about a microsecond each.
  constexpr std::size_t kAtOnce = 256;
  const std::size_t tables = entries_.size();
  std::atomic<std::size_t> next = 0;
  workers.run((tables + kAtOnce - 1) / kAtOnce, [&](std::size_t /*worker*/) {
    for (std::size_t first = next.fetch_add(kAtOnce); first < tables;
         first = next.fetch_add(kAtOnce)) {
      interrupt.check();
      encode(first, std::min(first + kAtOnce, tables));
    }
  });
  check_costs(0);
}

void ShardCatalog::add_pieces(std::span<const Kind> kinds) {
  const std::size_t first = entries_.size();
  for (const Kind kind : kinds) {
    if (entry(kind).piece == kNone) {
      entries_[static_cast<std::size_t>(kind)].piece = static_cast<Kind>(entries_.size());
      add(entry(kind).table, width(kind) / pieces(kind), kind);
    }
  }
  encode_from(first);
}

ShardCatalog::Kind ShardCatalog::add_kind(int table, std::int64_t width) {
  const std::size_t first = entries_.size();
  add(table, width, kNone);
  encode_from(first);
  return static_cast<Kind>(first);
}

void ShardCatalog::encode_from(std::size_t first) {
  make_room();
  encode(first, entries_.size());
  check_costs(first);
}

/// Few bytes of a damaged file can ask for more than any machine has.
void ShardCatalog::make_room() {
  constexpr std::size_t kMaxSums = std::size_t{1} << 29;  // 2 GiB
  const std::size_t sums = networks_.set().sums_size();
  if (sums > kMaxSums / entries_.size()) {
    throw std::invalid_argument("set: a first layer of " + std::to_string(sums) +
                                " outputs is too wide for " + std::to_string(problem_.tables()) +
                                " tables");
  }
  contributions_.resize(entries_.size() * sums);
}

void ShardCatalog::add(int table, std::int64_t width, Kind whole) {
  entries_.push_back({.width = width,
                      .bytes = problem_.shard_bytes(table, width),
                      .output_dim = problem_.shard_output_dim(table, width),
                      .single_cost = 0.0F,
                      .table = table,
                      .piece = kNone,
                      .whole = whole});
}

void ShardCatalog::encode(std::size_t first, std::size_t last) {
  const SetNetwork& set = networks_.set();
  const std::size_t size = set.sums_size();
  Network::Workspace table_workspace;
  SetNetwork::Workspace set_workspace;
  std::vector<float> of_shard(problem_.features());
  AlignedVector<float> features(problem_.features() * kLanes);
  AlignedVector<float> contributions(size * kLanes);
  AlignedVector<float> sums(size * kLanes);
  PerLane<const float*> empty{};
  PerLane<const float*> contribution_of{};
  PerLane<float*> after{};
  empty.fill(set.empty_sums().data());
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    contribution_of[lane] = contributions.data() + lane * size;
    after[lane] = sums.data() + lane * size;
  }
  for (; first < last; first += kLanes) {
    const std::size_t count = std::min(kLanes, last - first);
    for (std::size_t lane = 0; lane < count; ++lane) {
      const Entry& shard = entries_[first + lane];
      problem_.shard_features(shard.table, shard.width, of_shard);
      for (std::size_t i = 0; i < of_shard.size(); ++i) {
        features[i * kLanes + lane] = of_shard[i];
      }
    }
    set.contributions(networks_.encode(features.data(), table_workspace), contributions.data(),
                      set_workspace);
    std::copy_n(contributions.begin(), count * size,
                contributions_.begin() + static_cast<std::ptrdiff_t>(first * size));
    PerLane<float> costs{};
    set.add(empty, contribution_of, after, costs, set_workspace);
    for (std::size_t lane = 0; lane < count; ++lane) {
      entries_[first + lane].single_cost = costs[lane];
    }
  }
}

void ShardCatalog::check_costs(std::size_t first) const {
  for (const Entry& shard : std::span(entries_).subspan(first)) {
    if (!std::isfinite(shard.single_cost)) {
      throw std::invalid_argument("features[" + std::to_string(shard.table) +
                                  "]: the compute network gives no finite cost for a shard of " +
                                  std::to_string(shard.width) + " columns");
    }
  }
}

}  // namespace neuroshard
