#include "split_plan.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>

#include "shards.hpp"

namespace neuroshard {

SplitPlan to_split_plan(const Problem& problem, ShardCatalog& catalog,
                        const std::vector<std::int64_t>& column_splits,
                        const Placement& placement) {
  const std::vector<Shard> shards = split_shards(problem, column_splits);
  SplitPlan plan{.shards = {}, .splits = static_cast<int>(column_splits.size())};
  plan.shards.resize(shards.size());
  for (std::size_t device = 0; device < placement.size(); ++device) {
    for (const std::int64_t number : placement[device]) {
      const Shard& shard = shards[static_cast<std::size_t>(number)];
      ShardCatalog::Kind kind = shard.table;
      while (catalog.width(kind) > shard.width) {
        catalog.add_pieces({&kind, 1});
        kind = catalog.piece(kind);
      }
      plan.shards[static_cast<std::size_t>(number)] = {.kind = kind,
                                                       .device = static_cast<int>(device)};
    }
  }
  return plan;
}

SplitsAndPlacement from_split_plan(const Problem& problem, const ShardCatalog& catalog,
                                   const SplitPlan& plan) {
  SplitsAndPlacement found;
  found.placement.resize(static_cast<std::size_t>(problem.devices()));
  const auto tables = static_cast<std::size_t>(problem.tables());
  std::vector<std::vector<PlacedShard>> of_table(tables);
  for (const PlacedShard& shard : plan.shards) {
    of_table[static_cast<std::size_t>(catalog.table(shard.kind))].push_back(shard);
  }
  auto next = static_cast<std::int64_t>(tables);  // number of the next shard that a split appends
  for (std::size_t table = 0; table < tables; ++table) {
    std::vector<PlacedShard>& shards = of_table[table];
    std::ranges::stable_sort(shards, std::greater<>{},
                             [&](const PlacedShard& shard) { return catalog.width(shard.kind); });
    // From the whole table down: of each kind some shards stay and the others are split on.
    std::vector<std::int64_t> numbers = {static_cast<std::int64_t>(table)};
    auto kind = static_cast<ShardCatalog::Kind>(table);
    auto shard = shards.begin();
    while (true) {
      std::size_t stay = 0;
      for (; shard != shards.end() && shard->kind == kind; ++shard) {
        found.placement[static_cast<std::size_t>(shard->device)].push_back(numbers[stay++]);
      }
      numbers.erase(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(stay));
      if (numbers.empty()) {
        break;
      }
      found.column_splits.insert(found.column_splits.end(), numbers.begin(), numbers.end());
      for (std::int64_t more =
               static_cast<std::int64_t>(numbers.size()) * (catalog.pieces(kind) - 1);
           more > 0; --more) {
        numbers.push_back(next++);
      }
      kind = catalog.piece(kind);
    }
  }
  for (std::vector<std::int64_t>& on_device : found.placement) {
    std::ranges::sort(on_device);
  }
  return found;
}

}  // namespace neuroshard
