#include "search.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

#include "beam_search.hpp"
#include "kernels/kernels.hpp"
#include "plan_cost.hpp"
#include "shard_catalog.hpp"
#include "workers.hpp"

namespace neuroshard {

namespace {

void check_range(int value, const char* name, int low, int high) {
  if (value < low || value > high) {
    throw std::invalid_argument(std::string(name) + " must lie between " + std::to_string(low) +
                                " and " + std::to_string(high) + ", got " + std::to_string(value));
  }
}

}  // namespace

/// Few bytes of a damaged file can ask for more than any machine has.
void check_memory(const CostNetworks& networks, const Problem& problem,
                  const SearchOptions& options) {
  constexpr std::size_t kMaxSums = std::size_t{1} << 31;    // 8 GiB
  constexpr std::size_t kMaxShards = std::size_t{1} << 28;  // of the sequences of a beam; 3 GiB
  const std::size_t sums = networks.set().sums_size();
  const auto devices = static_cast<std::size_t>(problem.devices());
  const std::size_t shards =
      static_cast<std::size_t>(problem.tables()) +
      static_cast<std::size_t>(options.max_splits) * static_cast<std::size_t>(problem.most_added());
  // Passes keep the sums of the set network for every load of a device, of which a device has one
  // for each limit and one for what is pinned to it at most, and room for them doubles.
  const std::size_t loads =
      2 * std::min(devices * (static_cast<std::size_t>(options.grid_steps) + 1), shards) + 1;
  const std::size_t passes = kLanes * static_cast<std::size_t>(options.threads);
  if (sums > kMaxSums / loads / passes) {
    throw std::invalid_argument("set: a first layer of " + std::to_string(sums) +
                                " outputs is too wide for " + std::to_string(problem.devices()) +
                                " devices, " + std::to_string(problem.tables()) + " tables and " +
                                std::to_string(options.threads) + " threads");
  }
  if (static_cast<std::size_t>(options.beam_width) > kMaxShards / shards) {
    throw std::invalid_argument("beam_width: a beam of " + std::to_string(options.beam_width) +
                                " is too wide for " + std::to_string(problem.tables()) + " tables");
  }
}

void check_options(const SearchOptions& options) {
  check_range(options.beam_width, "beam_width", 1, SearchOptions::kMaxBeamWidth);
  check_range(options.candidates, "candidates", 1, SearchOptions::kMaxCandidates);
  check_range(options.max_splits, "max_splits", 0, SearchOptions::kMaxSplits);
  check_range(options.grid_steps, "grid_steps", 1, SearchOptions::kMaxGridSteps);
  check_range(options.threads, "threads", 1, SearchOptions::kMaxThreads);
}

std::optional<Plan> search(const CostNetworks& networks, const Problem& problem,
                           const SearchOptions& options, Interrupt& interrupt,
                           const PassObserver& observer) {
  check_options(options);
  check_memory(networks, problem, options);
  Workers workers(options.threads, interrupt);
  ShardCatalog catalog(networks, problem, workers, interrupt);
  BeamSearch beam_search(networks, problem, options, catalog, workers, interrupt, observer);
  beam_search.run();
  workers.dismiss();
  std::optional<SplitsAndPlacement> best = beam_search.best(interrupt);
  if (!best) {
    return std::nullopt;
  }
  return evaluate_plan(networks, problem, catalog, std::move(best->column_splits),
                       std::move(best->placement), interrupt);
}

}  // namespace neuroshard
