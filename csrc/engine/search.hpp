#pragma once

#include <optional>

#include "cost_networks.hpp"
#include "interrupt.hpp"
#include "pass_observer.hpp"
#include "plan.hpp"
#include "problem.hpp"

namespace neuroshard {

/// Options of the search; the published method's are the defaults.
struct SearchOptions {
  // What a beam takes for many tables is bounded by the search.
  static constexpr int kMaxBeamWidth = 4096;
  static constexpr int kMaxCandidates = 4096;
  static constexpr int kMaxSplits = 65536;
  static constexpr int kMaxGridSteps = 65536;
  static constexpr int kMaxThreads = 1024;

  int beam_width = 3;   // split sequences kept from round to round, at least 1
  int candidates = 10;  // largest and dearest shards tried for a split, each so many, at least 1
  int max_splits = 10;  // rounds; 0 searches table-wise only
  int grid_steps = 11;  // limits tried by the grid search, at least 1
  int threads = 1;      // at least 1; the plan does not depend on it
};

/// Throws std::invalid_argument for options out of range.
void check_options(const SearchOptions& options);

/// Throws std::invalid_argument where a search would take more memory than any machine has.
void check_memory(const CostNetworks& networks, const Problem& problem,
                  const SearchOptions& options);

/// The cheapest plan that the method finds (beam_search.hpp), or nothing. Throws
/// std::invalid_argument for options out of range and networks that do not suit the problem, and
/// Interrupted. `observer` is told of the passes of all threads.
std::optional<Plan> search(const CostNetworks& networks, const Problem& problem,
                           const SearchOptions& options, Interrupt& interrupt,
                           const PassObserver& observer = {});

}  // namespace neuroshard
