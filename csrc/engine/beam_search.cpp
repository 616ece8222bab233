#include "beam_search.hpp"

#include <algorithm>
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

}  // namespace

BeamSearch::BeamSearch(const CostNetworks& networks, const Problem& problem,
                       const SearchOptions& options, Interrupt& interrupt)
    : networks_(networks),
      problem_(problem),
      options_(options),
      interrupt_(interrupt),
      catalog_(networks, problem, options.threads, interrupt),
      grid_searches_(static_cast<std::size_t>(options.threads)) {}

std::optional<Plan> BeamSearch::run() {
  Sequence unsplit;
  unsplit.shards.resize(static_cast<std::size_t>(problem_.tables()));
  std::iota(unsplit.shards.begin(), unsplit.shards.end(), 0);
  unsplit.order = placement_order(catalog_, unsplit.shards);
  keep_if_cheapest(unsplit, grid_search(0).best(unsplit.ordered_shards()));

  std::vector<Sequence> beam = {std::move(unsplit)};
  for (int round = 0; round < options_.max_splits && !beam.empty(); ++round) {
    std::vector<Extension> extensions = extend(beam);
    for (std::size_t first = 0; first < extensions.size(); first += kChunk) {
      score(std::span(extensions).subspan(first, std::min(kChunk, extensions.size() - first)));
    }
    beam = best_of(std::move(extensions));
  }

  if (!std::isfinite(best_cost_)) {
    return std::nullopt;
  }
  return evaluate_plan(networks_, problem_, catalog_, best_splits_, best_placement_, interrupt_);
}

std::vector<BeamSearch::Extension> BeamSearch::extend(const std::vector<Sequence>& beam) {
  std::vector<Extension> extensions;
  for (const Sequence& parent : beam) {
    for (const int shard : split_candidates(parent.shards)) {
      interrupt_.check();
      const Kind kind = parent.shards[static_cast<std::size_t>(shard)];
      if (catalog_.can_split(kind)) {
        catalog_.add_half(kind);
        extensions.push_back({&parent, shard, std::numeric_limits<double>::infinity()});
      }
    }
  }
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
  std::vector<Sequence> sequences;
  std::map<std::vector<Kind>, std::size_t> task_of_shards;
  std::vector<std::size_t> tasks;  // of each extension
  for (const Extension& extension : extensions) {
    interrupt_.check();
    sequences.push_back(apply(extension));
    const auto entry =
        task_of_shards.try_emplace(sequences.back().ordered_shards(), task_of_shards.size()).first;
    tasks.push_back(entry->second);
  }
  std::vector<const std::vector<Kind>*> shards_of_task(task_of_shards.size());
  for (const auto& [shards, task] : task_of_shards) {
    shards_of_task[task] = &shards;
  }

  std::vector<GridSearch::Result> results(shards_of_task.size());
  parallel_for(results.size(), options_.threads, interrupt_,
               [&](std::size_t task, std::size_t worker) {
                 results[task] = grid_search(worker).best(*shards_of_task[task]);
               });

  for (std::size_t i = 0; i < extensions.size(); ++i) {
    const GridSearch::Result& result = results[tasks[i]];
    extensions[i].cost = result.cost;
    keep_if_cheapest(sequences[i], result);
  }
}

std::vector<BeamSearch::Sequence> BeamSearch::best_of(std::vector<Extension> extensions) const {
  std::stable_sort(extensions.begin(), extensions.end(),
                   [](const Extension& a, const Extension& b) { return a.cost < b.cost; });
  extensions.resize(std::min(extensions.size(), static_cast<std::size_t>(options_.beam_width)));
  std::vector<Sequence> best;
  best.reserve(extensions.size());
  for (const Extension& extension : extensions) {
    interrupt_.check();
    best.push_back(apply(extension));
  }
  return best;
}

void BeamSearch::keep_if_cheapest(const Sequence& sequence, const GridSearch::Result& result) {
  if (!(result.cost < best_cost_)) {
    return;
  }
  best_cost_ = result.cost;
  best_splits_ = sequence.splits;
  best_placement_.assign(static_cast<std::size_t>(problem_.devices()), {});
  for (std::size_t position = 0; position < sequence.order.size(); ++position) {
    best_placement_[static_cast<std::size_t>(result.devices[position])].push_back(
        sequence.order[position]);
  }
}

GridSearch& BeamSearch::grid_search(std::size_t worker) {
  std::unique_ptr<GridSearch>& grid_search = grid_searches_[worker];
  if (!grid_search) {
    grid_search = std::make_unique<GridSearch>(networks_, problem_, catalog_, options_.grid_steps,
                                               interrupt_);
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
