#include "search.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>

#include "beam_search.hpp"

namespace neuroshard {

namespace {

void check_range(int value, const char* name, int low, int high) {
  if (value < low || value > high) {
    throw std::invalid_argument(std::string(name) + " must lie between " + std::to_string(low) +
                                " and " + std::to_string(high) + ", got " + std::to_string(value));
  }
}

/// A pass keeps the sums of the set network for every load of a device, of which a device has one
/// for each limit at most, and room for them doubles. Few bytes of a damaged file can ask for more
/// than any machine has.
void check_memory(const CostNetworks& networks, const Problem& problem,
                  const SearchOptions& options) {
  // Of one pass; 4 GiB for the lanes of a worker.
  constexpr std::size_t kMaxSums = std::size_t{1} << 26;
  const std::size_t sums = networks.set().sums_size();
  const auto devices = static_cast<std::size_t>(problem.devices());
  const std::size_t shards =
      static_cast<std::size_t>(problem.tables()) + static_cast<std::size_t>(options.max_splits);
  const std::size_t loads =
      std::min(devices * static_cast<std::size_t>(options.grid_steps), shards);
  if (sums > kMaxSums / (2 * std::max(devices, loads) + 1)) {
    throw std::invalid_argument("set: a first layer of " + std::to_string(sums) +
                                " outputs is too wide for " + std::to_string(problem.devices()) +
                                " devices and " + std::to_string(problem.tables()) + " tables");
  }
}

}  // namespace

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
  return BeamSearch(networks, problem, options, interrupt, observer).run();
}

}  // namespace neuroshard
