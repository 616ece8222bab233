#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cost_networks.hpp"
#include "grid_search.hpp"
#include "interrupt.hpp"
#include "pass_observer.hpp"
#include "plan.hpp"
#include "problem.hpp"
#include "search.hpp"
#include "shard_catalog.hpp"
#include "split_plan.hpp"
#include "workers.hpp"

namespace neuroshard {

/// Column-wise search: a beam search over sequences of column splits.
///
/// Starts from the unsplit tables. In each round every kept sequence is extended by one more split,
/// in as many ways as there are candidates, each extension is scored by the table-wise search, and
/// the best ones are kept. The answer is the cheapest plan seen.
class BeamSearch {
 public:
  /// Keeps references; `catalog` learns the kinds of shards that come up.
  BeamSearch(const CostNetworks& networks, const Problem& problem, const SearchOptions& options,
             ShardCatalog& catalog, Workers& workers, Interrupt& interrupt, PassObserver observer);

  /// Throws Interrupted; what was found until then is there all the same.
  void run();

  /// The cheapest plan seen, if there is one. Throws Interrupted.
  std::optional<SplitsAndPlacement> best(Interrupt& interrupt);

  /// Shards placed by the greedy passes under the highest limit.
  std::int64_t placements() const { return placements_; }

 private:
  using Kind = ShardCatalog::Kind;

  /// Positions in the parent's order: of the shard to split, and before which its pieces go.
  struct Places {
    std::size_t split;
    std::size_t appended;  // of all but the first piece; among equals the later index goes first
    std::size_t in_place;  // of the first, so not before `appended`
  };

  /// A split sequence and the shards that it leads to.
  struct Sequence {
    std::vector<std::int64_t> splits;
    std::vector<Kind> shards;
    // Indices into `shards` as a greedy pass takes them, which are all but pinned tables.
    std::vector<int> order;
    std::vector<Kind> ordered_shards;  // in this order
    std::uint64_t fingerprint = 0;     // sums up what was split into what, whatever the order
    GridSearch::Result result;         // of the table-wise search
  };

  /// A kept sequence and one more split.
  struct Extension {
    const Sequence* parent = nullptr;  // in the beam of this round, which outlives it
    int shard = 0;                     // index into the parent's shards
    GridSearch::Result result;         // of the table-wise search
  };

  std::vector<Extension> extend(const std::vector<Sequence>& beam);
  std::vector<int> split_candidates(const std::vector<Kind>& shards) const;
  Places places(const Extension& extension) const;
  std::size_t added(const Extension& extension) const;
  template <typename T, typename Appended>
  static void put_pieces(std::span<const T> ordered, const Places& places, T in_place,
                         std::size_t added, Appended appended, std::span<T> result);
  std::uint64_t fingerprint(const Extension& extension) const;
  Sequence apply(const Extension& extension) const;
  void score(std::span<Extension> extensions);
  std::vector<GridSearch::Result> run_grid_searches(std::span<const GridSearch::Shards> tasks);
  std::vector<Sequence> best_of(std::vector<Extension> extensions) const;
  GridSearch& grid_search(std::size_t worker);

  const CostNetworks& networks_;
  const Problem& problem_;
  const SearchOptions options_;
  Interrupt& interrupt_;
  PassObserver observer_;
  Workers& workers_;
  ShardCatalog& catalog_;
  Sequence best_;
  std::int64_t placements_ = 0;
  std::vector<std::unique_ptr<GridSearch>> grid_searches_;  // of each worker, once it has worked
};

}  // namespace neuroshard
