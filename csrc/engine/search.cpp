#include "search.hpp"

#include <stdexcept>
#include <string>

#include "beam_search.hpp"

namespace neuroshard {

namespace {

void check_at_least(int value, const char* name, int low) {
  if (value < low) {
    throw std::invalid_argument(std::string(name) + " must be at least " + std::to_string(low) +
                                ", got " + std::to_string(value));
  }
}

}  // namespace

std::optional<Plan> search(const CostNetworks& networks, const Problem& problem,
                           const SearchOptions& options, Interrupt& interrupt) {
  check_at_least(options.beam_width, "beam_width", 1);
  check_at_least(options.candidates, "candidates", 1);
  check_at_least(options.max_splits, "max_splits", 0);
  check_at_least(options.grid_steps, "grid_steps", 1);
  check_at_least(options.threads, "threads", 1);
  return BeamSearch(networks, problem, options, interrupt).run();
}

}  // namespace neuroshard
