#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "cost_networks.hpp"
#include "interrupt.hpp"
#include "plan.hpp"
#include "problem.hpp"
#include "search.hpp"

namespace neuroshard {

/// How long the automatic search goes on, and what it tells meanwhile.
struct AutoOptions {
  SearchOptions search;  // of the published method, which it begins with
  std::uint64_t seed = 0;
  // Evaluations of PlanObjective that improve the plan. Where there is neither this nor a deadline,
  // so many as take about as long as the published search.
  std::optional<std::int64_t> evaluations;
  // Goes on until then.
  std::optional<Interrupt::Clock::time_point> deadline;
  // Is told of every better plan, on the calling thread; ms. May be empty.
  std::function<void(double cost)> improved;
};

/// What the automatic search found.
struct AutoAnswer {
  std::optional<Plan> plan;
  // Cost of the plan by PlanObjective, and whether that is a mean over orders of the devices.
  double objective = 0.0;
  bool is_mean = false;
  // Cost by PlanObjective of what the published search found, if it did.
  std::optional<double> published;
  std::string impossible;  // why there can be no plan, where that is known
  bool interrupted = false;
  std::int64_t evaluations = 0;
};

/// The published search, and then changes of its plan that make it cheaper; where it finds none, a
/// plan that keeps the memory, and then the same. What was found is answered also when the work is
/// interrupted. The same for the same seed and any number of threads, unless a deadline or an
/// interrupt ends it. Throws std::invalid_argument as `search` does.
AutoAnswer auto_search(const CostNetworks& networks, const Problem& problem,
                       const AutoOptions& options, Interrupt& interrupt);

}  // namespace neuroshard
