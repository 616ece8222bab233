#include "beam_search.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "plan_cost.hpp"
#include "shards.hpp"
#include "spread.hpp"

namespace neuroshard {

namespace {

// Shards in the extensions scored together, whose orders are written out.
constexpr std::size_t kMaxOrdered = std::size_t{1} << 24;

/// Whether a greedy pass takes shard `a` before shard `b`: the one that alone is dearer goes first,
/// among equals the one of the later index.
bool goes_before(float cost_a, int a, float cost_b, int b) {
  return cost_a != cost_b ? cost_a > cost_b : a > b;
}

/// The tables that are not pinned, in the order in which a greedy pass takes them.
std::vector<int> placement_order(const ShardCatalog& catalog, const Problem& problem) {
  std::vector<int> order;
  for (int table = 0; table < problem.tables(); ++table) {
    if (problem.pinned(table) == Problem::kAnyDevice) {
      order.push_back(table);
    }
  }
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    return goes_before(catalog.single_cost(a), a, catalog.single_cost(b), b);
  });
  return order;
}

}  // namespace

BeamSearch::BeamSearch(const CostNetworks& networks, const Problem& problem,
                       const SearchOptions& options, ShardCatalog& catalog, Workers& workers,
                       Interrupt& interrupt, PassObserver observer)
    : networks_(networks),
      problem_(problem),
      options_(options),
      interrupt_(interrupt),
      observer_(std::move(observer)),
      workers_(workers),
      catalog_(catalog),
      grid_searches_(workers_.count()) {}

void BeamSearch::run() {
  best_.shards.resize(static_cast<std::size_t>(problem_.tables()));
  std::iota(best_.shards.begin(), best_.shards.end(), 0);
  best_.order = placement_order(catalog_, problem_);
  best_.ordered_shards = best_.order;  // the kind of a table is its index
  best_.result = run_grid_searches(std::vector<GridSearch::Shards>{best_.ordered_shards}).front();

  std::vector<Sequence> beam = {best_};
  for (int round = 0; round < options_.max_splits && !beam.empty(); ++round) {
    std::vector<Extension> extensions = extend(beam);
    const std::size_t most_shards =
        static_cast<std::size_t>(problem_.tables()) +
        static_cast<std::size_t>(problem_.most_added()) * static_cast<std::size_t>(round + 1);
    const std::size_t chunk = 1 + kMaxOrdered / most_shards;
    for (std::size_t first = 0; first < extensions.size(); first += chunk) {
      score(std::span(extensions).subspan(first, std::min(chunk, extensions.size() - first)));
    }
    beam = best_of(std::move(extensions));
    if (!beam.empty() && beam.front().result.cost < best_.result.cost) {
      best_ = beam.front();
    }
  }
}

std::vector<BeamSearch::Extension> BeamSearch::extend(const std::vector<Sequence>& beam) {
  std::vector<Extension> extensions;
  std::vector<Kind> to_split;
  for (const Sequence& parent : beam) {
    interrupt_.check();
    for (const int shard : split_candidates(parent.shards)) {
      const Kind kind = parent.shards[static_cast<std::size_t>(shard)];
      if (catalog_.pieces(kind) > 1) {
        to_split.push_back(kind);
        extensions.push_back({&parent, shard, {}});
      }
    }
  }
  catalog_.add_pieces(to_split);
  return extensions;
}

std::vector<int> BeamSearch::split_candidates(const std::vector<Kind>& shards) const {
  std::vector<int> indices;
  for (std::size_t index = 0; index < shards.size(); ++index) {
    if (!catalog_.kept_whole(shards[index])) {
      indices.push_back(static_cast<int>(index));
    }
  }
  const std::size_t count = std::min(static_cast<std::size_t>(options_.candidates), indices.size());
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

BeamSearch::Places BeamSearch::places(const Extension& extension) const {
  const Sequence& parent = *extension.parent;
  const std::vector<int>& order = parent.order;
  const Kind split = parent.shards[static_cast<std::size_t>(extension.shard)];
  const float cost = catalog_.single_cost(catalog_.piece(split));
  const auto place = [&](int piece) {
    const auto found = std::lower_bound(order.begin(), order.end(), piece, [&](int a, int b) {
      const Kind kind = parent.shards[static_cast<std::size_t>(a)];
      return goes_before(catalog_.single_cost(kind), a, cost, b);
    });
    return static_cast<std::size_t>(found - order.begin());
  };
  const auto found = std::find(order.begin(), order.end(), extension.shard);
  return {.split = static_cast<std::size_t>(found - order.begin()),
          .appended = place(static_cast<int>(parent.shards.size())),
          .in_place = place(extension.shard)};
}

/// Shards that the split adds.
std::size_t BeamSearch::added(const Extension& extension) const {
  const Kind split = extension.parent->shards[static_cast<std::size_t>(extension.shard)];
  return static_cast<std::size_t>(catalog_.pieces(split)) - 1;
}

/// Replaces a shard, in a list ordered as the greedy pass takes shards, by its pieces:
/// `appended(i)` are those that the split adds, as they are numbered.
template <typename T, typename Appended>
void BeamSearch::put_pieces(std::span<const T> ordered, const Places& places, T in_place,
                            std::size_t added, Appended appended, std::span<T> result) {
  auto next = result.begin();
  const auto copy = [&](std::size_t first, std::size_t last) {
    next = std::ranges::copy(ordered.subspan(first, last - first), next).out;
  };
  const auto copy_but_split = [&](std::size_t first, std::size_t last) {
    if (first <= places.split && places.split < last) {
      copy(first, places.split);
      copy(places.split + 1, last);
    } else {
      copy(first, last);
    }
  };
  copy_but_split(0, places.appended);
  for (std::size_t i = added; i-- > 0;) {
    *next++ = appended(i);
  }
  copy_but_split(places.appended, places.in_place);
  *next++ = in_place;
  copy_but_split(places.in_place, ordered.size());
}

BeamSearch::Sequence BeamSearch::apply(const Extension& extension) const {
  const Sequence& parent = *extension.parent;
  const auto shard = static_cast<std::size_t>(extension.shard);
  const Kind piece = catalog_.piece(parent.shards[shard]);
  const std::size_t more = added(extension);
  Sequence sequence = parent;
  sequence.splits.push_back(extension.shard);
  sequence.shards[shard] = piece;
  sequence.shards.resize(parent.shards.size() + more, piece);
  const Places pieces = places(extension);
  sequence.order.resize(parent.order.size() + more);
  put_pieces(
      std::span(parent.order), pieces, extension.shard, more,
      [&](std::size_t i) { return static_cast<int>(parent.shards.size() + i); },
      std::span(sequence.order));
  sequence.ordered_shards.resize(sequence.order.size());
  put_pieces(
      std::span(parent.ordered_shards), pieces, piece, more,
      [piece](std::size_t /*i*/) { return piece; }, std::span(sequence.ordered_shards));
  sequence.fingerprint = fingerprint(extension);
  sequence.result = extension.result;
  return sequence;
}

std::uint64_t BeamSearch::fingerprint(const Extension& extension) const {
  const auto number = [](Kind kind) { return static_cast<std::uint64_t>(kind); };
  const Kind split = extension.parent->shards[static_cast<std::size_t>(extension.shard)];
  return extension.parent->fingerprint - spread(number(split)) +
         static_cast<std::uint64_t>(catalog_.pieces(split)) * spread(number(catalog_.piece(split)));
}

void BeamSearch::score(std::span<Extension> extensions) {
  const auto size = [&](const Extension& extension) {
    return extension.parent->order.size() + added(extension);
  };
  std::size_t total = 0;
  for (const Extension& extension : extensions) {
    total += size(extension);
  }
  std::vector<Kind> ordered_shards(total);
  std::size_t used = 0;
  std::unordered_map<std::uint64_t, std::size_t> task_with;  // by fingerprint
  std::vector<GridSearch::Shards> tasks;
  std::vector<std::size_t> task_of(extensions.size());
  for (std::size_t i = 0; i < extensions.size(); ++i) {
    interrupt_.check();
    const Sequence& parent = *extensions[i].parent;
    const Kind piece = catalog_.piece(parent.shards[static_cast<std::size_t>(extensions[i].shard)]);
    const std::span<Kind> shards = std::span(ordered_shards).subspan(used, size(extensions[i]));
    put_pieces(
        std::span(parent.ordered_shards), places(extensions[i]), piece, added(extensions[i]),
        [piece](std::size_t /*i*/) { return piece; }, shards);
    // Sequences that split the same shards in another order often give the greedy pass the same
    // kinds in the same order. It cannot tell them apart, so it runs once for all of them. The
    // fingerprint only finds one to compare with: where others have the same, passes are run twice.
    const auto [entry, is_new] = task_with.try_emplace(fingerprint(extensions[i]), tasks.size());
    if (is_new || !std::ranges::equal(tasks[entry->second], shards)) {
      task_of[i] = tasks.size();
      tasks.emplace_back(shards);
      used += shards.size();
    } else {
      task_of[i] = entry->second;
    }
  }
  const std::vector<GridSearch::Result> results = run_grid_searches(tasks);
  for (std::size_t i = 0; i < extensions.size(); ++i) {
    extensions[i].result = results[task_of[i]];
  }
}

std::vector<GridSearch::Result> BeamSearch::run_grid_searches(
    std::span<const GridSearch::Shards> tasks) {
  std::vector<GridSearch::Result> results(tasks.size());
  std::atomic<std::size_t> next = 0;
  // Also those who get none: before the first round that has some for all, they make their buffers.
  workers_.run(workers_.count(), [&](std::size_t worker) {
    grid_search(worker).run(tasks, next, (tasks.size() + workers_.count() - 1) / workers_.count(),
                            results);
  });
  for (const GridSearch::Result& result : results) {
    placements_ += static_cast<std::int64_t>(result.placed);
  }
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

std::optional<SplitsAndPlacement> BeamSearch::best(Interrupt& interrupt) {
  if (!std::isfinite(best_.result.cost)) {
    return std::nullopt;
  }
  const std::vector<int> devices =
      grid_search(0).devices(best_.ordered_shards, best_.result.step, interrupt);
  SplitsAndPlacement found{.column_splits = best_.splits, .placement = pinned_placement(problem_)};
  for (std::size_t position = 0; position < devices.size(); ++position) {
    found.placement[static_cast<std::size_t>(devices[position])].push_back(best_.order[position]);
  }
  return found;
}

GridSearch& BeamSearch::grid_search(std::size_t worker) {
  std::unique_ptr<GridSearch>& grid_search = grid_searches_[worker];
  if (!grid_search) {
    grid_search = std::make_unique<GridSearch>(networks_, problem_, catalog_, options_.grid_steps,
                                               interrupt_, observer_);
  }
  return *grid_search;
}

}  // namespace neuroshard
