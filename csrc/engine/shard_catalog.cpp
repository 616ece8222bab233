#include "shard_catalog.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "parallel.hpp"

namespace neuroshard {

ShardCatalog::ShardCatalog(const CostNetworks& networks, const Problem& problem, int threads,
                           Interrupt& interrupt)
    : networks_(networks), problem_(problem) {
  if (problem.features() != networks.features()) {
    throw std::invalid_argument("features: the cost networks take " +
                                std::to_string(networks.features()) + " features of a table, got " +
                                std::to_string(problem.features()));
  }
  for (int table = 0; table < problem.tables(); ++table) {
    add(table, problem.table_width(table));
  }
  // Threads pay only where each has many tables to encode, about a microsecond each.
  constexpr std::size_t kTablesOfTask = 256;
  const std::size_t tables = entries_.size();
  parallel_for((tables + kTablesOfTask - 1) / kTablesOfTask, threads, interrupt,
               [&](std::size_t task, std::size_t) {
                 EncodeBuffers buffers;
                 const std::size_t first = task * kTablesOfTask;
                 const std::size_t last = std::min(first + kTablesOfTask, tables);
                 for (std::size_t table = first; table < last; ++table) {
                   encode(static_cast<Kind>(table), buffers);
                 }
               });
  // One after the other, so that which one is named does not depend on the threads.
  for (std::size_t table = 0; table < tables; ++table) {
    check_cost(static_cast<Kind>(table));
  }
}

void ShardCatalog::add_half(Kind kind) {
  if (entry(kind).half == kNone) {
    const Kind added = add(entry(kind).table, entry(kind).width / 2);
    EncodeBuffers buffers;
    encode(added, buffers);
    check_cost(added);
    entries_[static_cast<std::size_t>(kind)].half = added;
  }
}

ShardCatalog::Kind ShardCatalog::add(int table, std::int64_t width) {
  entries_.push_back({.width = width,
                      .bytes = problem_.shard_bytes(table, width),
                      .output_dim = problem_.shard_output_dim(table, width),
                      .single_cost = 0.0F,
                      .table = table,
                      .half = kNone});
  contributions_.resize(entries_.size() * networks_.set().sums_size());
  return static_cast<Kind>(entries_.size() - 1);
}

void ShardCatalog::encode(Kind kind, EncodeBuffers& buffers) {
  Entry& shard = entries_[static_cast<std::size_t>(kind)];
  buffers.features.resize(problem_.features());
  problem_.shard_features(shard.table, shard.width, buffers.features);
  const std::span<const float> encoding = networks_.encode(buffers.features, buffers.workspace);
  const SetNetwork& set = networks_.set();
  float* contribution = contributions_.data() + static_cast<std::size_t>(kind) * set.sums_size();
  set.contribution(encoding, contribution);
  buffers.sums.assign(set.empty_sums().begin(), set.empty_sums().end());
  shard.single_cost = set.add(buffers.sums.data(), contribution, buffers.set_workspace);
}

void ShardCatalog::check_cost(Kind kind) const {
  const Entry& shard = entry(kind);
  if (!std::isfinite(shard.single_cost)) {
    throw std::invalid_argument("features[" + std::to_string(shard.table) +
                                "]: the compute network gives no finite cost for a shard of " +
                                std::to_string(shard.width) + " columns");
  }
}

}  // namespace neuroshard
