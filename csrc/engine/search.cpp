#include "search.hpp"

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
  return BeamSearch(networks, problem, options, interrupt, observer).run();
}

}  // namespace neuroshard
