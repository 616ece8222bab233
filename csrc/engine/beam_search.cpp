#include "beam_search.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "parallel.hpp"
#include "plan_cost.hpp"

namespace neuroshard {

namespace {

// Extensions scored together. Bounds the sequences and results held while a wide beam is scored.
constexpr std::size_t kChunk = 4096;

/// Whether a greedy pass takes shard `a` of these before shard `b`: the shard that alone is dearer
/// goes first, among equals the one of the later index.
bool placed_before(const ShardCatalog& catalog, std::span<const ShardCatalog::Kind> shards, int a,
                   int b) {
  const float cost_a = catalog.single_cost(shards[static_cast<std::size_t>(a)]);
  const float cost_b = catalog.single_cost(shards[static_cast<std::size_t>(b)]);
  return cost_a != cost_b ? cost_a > cost_b : a > b;
}

/// Indices into `shards` in the order in which a greedy pass takes them.
std::vector<int> placement_order(const ShardCatalog& catalog,
                                 std::span<const ShardCatalog::Kind> shards) {
  std::vector<int> order(shards.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int a, int b) { return placed_before(catalog, shards, a, b); });
  return order;
}

}  // namespace

BeamSearch::BeamSearch(const CostNetworks& networks, const Problem& problem,
                       const SearchOptions& options, Interrupt& interrupt, PassObserver observer)
    : networks_(networks),
      problem_(problem),
      options_(options),
      interrupt_(interrupt),
      observer_(std::move(observer)),
      catalog_(networks, problem, options.threads, interrupt),
      grid_searches_(static_cast<std::size_t>(options.threads)) {}

std::optional<Plan> BeamSearch::run() {
  Sequence best;
  best.shards.resize(static_cast<std::size_t>(problem_.tables()));
  std::iota(best.shards.begin(), best.shards.end(), 0);
  best.order = placement_order(catalog_, best.shards);
  best.result = score(std::vector<std::vector<Kind>>{best.ordered_shards()}).front();

  std::vector<Sequence> beam = {best};
  for (int round = 0; round < options_.max_splits && !beam.empty(); ++round) {
    std::vector<Extension> extensions = extend(beam);
    for (std::size_t first = 0; first < extensions.size(); first += kChunk) {
      score(std::span(extensions).subspan(first, std::min(kChunk, extensions.size() - first)));
    }
    beam = best_of(std::move(extensions));
    if (!beam.empty() && beam.front().result.cost < best.result.cost) {
      best = beam.front();
    }
  }

  if (!std::isfinite(best.result.cost)) {
    return std::nullopt;
  }
  return evaluate_plan(networks_, problem_, catalog_, best.splits, placement(best), interrupt_);
}

std::vector<BeamSearch::Extension> BeamSearch::extend(const std::vector<Sequence>& beam) {
  std::vector<Extension> extensions;
  std::vector<Kind> to_halve;
  for (const Sequence& parent : beam) {
    interrupt_.check();
    for (const int shard : split_candidates(parent.shards)) {
      const Kind kind = parent.shards[static_cast<std::size_t>(shard)];
      if (catalog_.can_split(kind)) {
        to_halve.push_back(kind);
        extensions.push_back({&parent, shard, {}});
      }
    }
  }
  catalog_.add_halves(to_halve);
  return extensions;
}

std::vector<int> BeamSearch::split_candidates(const std::vector<Kind>& shards) const {
  std::vector<int> indices(shards.size());
  std::iota(indices.begin(), indices.end(), 0);
  const std::size_t count = std::min(static_cast<std::size_t>(options_.candidates), shards.size());
  std::vector<int> candidates;
  // The `count` shards of largest value; among equals the lower index goes first.
  const auto add_largest = [&](auto value) {
    std::partial_sort(indices.begin(), indices.begin() + static_cast<std::ptrdiff_t>(count),
                      indices.end(), [&](int a, int b) {
                        const auto value_a = value(shards[static_cast<std::size_t>(a)]);
                        const auto value_b = value(shards[static_cast<std::size_t>(b)]);
                        return value_a != value_b ? value_a > value_b : a < b;
                      });
    candidates.insert(candidates.end(), indices.begin(),
                      indices.begin() + static_cast<std::ptrdiff_t>(count));
  };
  add_largest([&](Kind kind) { return catalog_.bytes(kind); });
  add_largest([&](Kind kind) { return catalog_.single_cost(kind); });
  std::sort(candidates.begin(), candidates.end());
  candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());
  return candidates;
}

BeamSearch::Sequence BeamSearch::apply(const Extension& extension) const {
  Sequence sequence = *extension.parent;
  sequence.result = extension.result;
  const Kind half = catalog_.half(sequence.shards[static_cast<std::size_t>(extension.shard)]);
  const int added = static_cast<int>(sequence.shards.size());
  sequence.splits.push_back(extension.shard);
  sequence.shards[static_cast<std::size_t>(extension.shard)] = half;
  sequence.shards.push_back(half);
  sequence.order.erase(std::find(sequence.order.begin(), sequence.order.end(), extension.shard));
  for (const int index : {extension.shard, added}) {
    const auto place = std::lower_bound(
        sequence.order.begin(), sequence.order.end(), index,
        [&](int a, int b) { return placed_before(catalog_, sequence.shards, a, b); });
    sequence.order.insert(place, index);
  }
  return sequence;
}

void BeamSearch::score(std::span<Extension> extensions) {
  // Sequences that split the same shards in another order often give the greedy pass the same kinds
  // in the same order. It cannot tell them apart, so it runs once for all of them.
  std::map<std::vector<Kind>, std::size_t> number_of;
  std::vector<std::vector<Kind>> different;
  std::vector<std::size_t> numbers;  // of each extension
  for (const Extension& extension : extensions) {
    interrupt_.check();
    std::vector<Kind> ordered_shards = apply(extension).ordered_shards();
    const auto [entry, added] = number_of.try_emplace(ordered_shards, different.size());
    if (added) {
      different.push_back(std::move(ordered_shards));
    }
    numbers.push_back(entry->second);
  }
  const std::vector<GridSearch::Result> results = score(different);
  for (std::size_t i = 0; i < extensions.size(); ++i) {
    extensions[i].result = results[numbers[i]];
  }
}

std::vector<GridSearch::Result> BeamSearch::score(
    std::span<const std::vector<Kind>> ordered_shards) {
  const std::vector<GridSearch::Shards> tasks(ordered_shards.begin(), ordered_shards.end());
  std::vector<GridSearch::Result> results(tasks.size());
  const std::size_t workers = std::min(tasks.size(), grid_searches_.size());
  std::atomic<std::size_t> next = 0;
  const auto next_task = [&]() -> std::optional<std::size_t> {
    const std::size_t task = next++;
    return task < tasks.size() ? std::optional(task) : std::nullopt;
  };
  parallel_for(
      workers, options_.threads, interrupt_, [&](std::size_t /*item*/, std::size_t worker) {
        grid_search(worker).run(tasks, next_task, (tasks.size() + workers - 1) / workers, results);
      });
  return results;
}

std::vector<BeamSearch::Sequence> BeamSearch::best_of(std::vector<Extension> extensions) const {
  std::stable_sort(
      extensions.begin(), extensions.end(),
      [](const Extension& a, const Extension& b) { return a.result.cost < b.result.cost; });
  extensions.resize(std::min(extensions.size(), static_cast<std::size_t>(options_.beam_width)));
  std::vector<Sequence> best;
  best.reserve(extensions.size());
  for (const Extension& extension : extensions) {
    interrupt_.check();
    best.push_back(apply(extension));
  }
  return best;
}

Placement BeamSearch::placement(const Sequence& sequence) {
  const std::vector<int> devices =
      grid_search(0).devices(sequence.ordered_shards(), sequence.result.step);
  Placement placement(static_cast<std::size_t>(problem_.devices()));
  for (std::size_t position = 0; position < devices.size(); ++position) {
    placement[static_cast<std::size_t>(devices[position])].push_back(sequence.order[position]);
  }
  return placement;
}

GridSearch& BeamSearch::grid_search(std::size_t worker) {
  std::unique_ptr<GridSearch>& grid_search = grid_searches_[worker];
  if (!grid_search) {
    grid_search = std::make_unique<GridSearch>(networks_, problem_, catalog_, options_.grid_steps,
                                               interrupt_, observer_);
  }
  return *grid_search;
}

std::vector<BeamSearch::Kind> BeamSearch::Sequence::ordered_shards() const {
  std::vector<Kind> ordered;
  ordered.reserve(order.size());
  for (const int index : order) {
    ordered.push_back(shards[static_cast<std::size_t>(index)]);
  }
  return ordered;
}

}  // namespace neuroshard
