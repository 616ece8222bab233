#include "lower_bound.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <variant>
#include <vector>

#include "communication_bound.hpp"
#include "compute_bound.hpp"
#include "rounding.hpp"
#include "shard_catalog.hpp"
#include "shard_sums.hpp"
#include "workers.hpp"

namespace neuroshard {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr int kSteps = 6;           // of bisection
constexpr int kFirstHalvings = 32;  // of cells of loads
constexpr int kHalvings = 12;
constexpr double kClose = 2e-3;    // to what is known, in proportion: good enough
constexpr double kRounded = 1.01;  // much more than rounding can make of a number

/// Asks: is there a plan that costs less than so much? For such plans bounds can be had that do not
/// hold for others: no device computes for as long, so none holds as much.
class Question {
 public:
  Question(const SharedCommunication& networks, const Problem& problem, ComputeBound compute,
           Interrupt& interrupt)
      : interrupt_(interrupt),
        communication_(networks, problem.devices(), problem.total_output_dim(),
                       compute.most_apart()),
        least_(compute.least()),
        mean_(compute.mean()),
        compute_(std::move(compute)) {}

  /// A bound for plans that cost less than `cost`; infinite where there are none.
  double bound(double cost) {
    ComputeBound compute = compute_;
    double least = least_;
    double mean = mean_;
    for (int round = is_first_ ? 0 : 1; round < 2; ++round) {
      // A device has computed before the last one starts, whose forward all-to-all follows. So it
      // computes for less than the cost without its own backward and that forward one.
      const double other = communicate(cost, least, mean, [](const AllToAllCosts& costs, double) {
        return costs.any_backward + costs.last_forward;
      });
      if (other == kInfinity || !compute.lower_cap(cost - other)) {
        return kInfinity;
      }
      least = std::max(least, compute.least());
      mean = std::max(mean, compute.mean());
    }
    is_first_ = false;
    const double bound = communicate(
        cost, least, mean, [](const AllToAllCosts& /*costs*/, double of_cell) { return of_cell; });
    if (bound < cost) {  // later questions are about less
      compute_ = std::move(compute);
      least_ = least;
      mean_ = mean;
    }
    return bound;
  }

 private:
  /// The least of a value over the cells of loads that plans cheaper than `cost` may have.
  template <typename Value>
  double communicate(double cost, double least, double mean, const Value& value) {
    const int halvings = is_first_ ? kFirstHalvings : kHalvings;
    return communication_.least(
        [&](const AllToAllCosts& costs, const LoadCell& cell) {
          // The last device starts after the mean time and the mean wait, and after any device's
          // time and its wait. It then costs no less than its forward all-to-all, and no less than
          // the mean of all devices.
          const double start = std::max(mean + costs.mean_backward + cell.mean_wait.low,
                                        least + costs.any_backward + cell.longest_wait.low);
          const double of_cell =
              std::max(mean + costs.mean_backward + costs.mean_forward, start + costs.last_forward);
          return of_cell >= cost ? kInfinity : value(costs, of_cell);
        },
        halvings, interrupt_);
  }

  Interrupt& interrupt_;
  CommunicationBound communication_;
  double least_;
  double mean_;
  ComputeBound compute_;
  bool is_first_ = true;
};

/// A bound for plans that cost less than a cost holds for all if it is not above that cost. Tries
/// lower costs than `upper`: the lower, the better the bound for the plans below.
double bisect(Question& question, double upper) {
  double high = upper;
  double low = std::min(upper, question.bound(upper));
  for (int step = 0; step < kSteps && high - low > kClose * std::abs(upper); ++step) {
    const double cost = std::midpoint(low, high);
    const double bound = question.bound(cost);
    if (bound >= cost) {
      low = cost;
    } else {
      low = std::max(low, bound);
      high = cost;
    }
  }
  return low;
}

bool has_two_layers(const Network& network) { return network.layers().size() == 2; }

bool has_two_layers(const SharedNetworks& networks) {
  return has_two_layers(networks.device()) && has_two_layers(networks.head());
}

/// The least of what the devices cost in the mean, by intervals. `inputs` are those of the network
/// before standardisation, whose magnitudes are their upper ends.
double least_mean(const Network& network, const std::vector<Range>& inputs) {
  std::vector<Rounded> roundings;
  roundings.reserve(inputs.size());
  for (const Range& input : inputs) {
    roundings.push_back({.magnitude = input.high, .error = rounding_factor(8.0) * input.high});
  }
  const std::vector<Range> costs = ranges(network, inputs);
  const std::vector<Rounded> errors = rounded(network, std::move(roundings));
  double sum = 0.0;
  for (std::size_t device = 0; device < costs.size(); ++device) {
    sum += costs[device].low - errors[device].error;
  }
  return sum / static_cast<double>(costs.size());
}

/// Networks of the published kind take the devices one by one, so that there are no symmetries by
/// which to bound them well; and they may predict negative costs for what they were not trained on.
/// A plan costs at least the mean over its devices, in whatever order these are.
double lower_bound_of(const PerCountCommunication::Networks& networks, const Problem& problem,
                      const ComputeBound& compute) {
  const auto devices = static_cast<std::size_t>(problem.devices());
  std::vector<Range> inputs(devices, {.low = 0.0, .high = problem.total_output_dim()});
  const double backward = least_mean(networks.backward, inputs);
  const std::vector<Range> of_backward = ranges(networks.backward, inputs);
  double apart = compute.most_apart();
  if (!of_backward.empty()) {
    apart += std::ranges::max(of_backward, {}, &Range::high).high -
             std::ranges::min(of_backward, {}, &Range::low).low;
  }
  inputs.resize(2 * devices, {.low = 0.0, .high = apart * kRounded});
  return compute.mean() + backward + least_mean(networks.forward, inputs);
}

}  // namespace

double lower_bound(const CostNetworks& networks, const Problem& problem, double upper,
                   int max_splits, Interrupt& interrupt) {
  if (!std::isfinite(upper)) {
    throw std::invalid_argument("upper must be a finite number");
  }
  if (max_splits < 0) {
    throw std::invalid_argument("max_splits must be at least 0");
  }
  Workers workers(1, interrupt);
  ShardCatalog catalog(networks, problem, workers, interrupt);
  if (!has_two_layers(networks.set().network())) {
    return -kInfinity;
  }
  const ShardSums sums(networks, problem, catalog, max_splits);
  ComputeBound compute(networks, sums, problem.devices(), interrupt);
  double bound = -kInfinity;
  if (const auto* per_count = std::get_if<PerCountCommunication>(&networks.communication())) {
    bound = lower_bound_of(per_count->networks(problem.devices()), problem, compute);
  } else if (const auto& shared = std::get<SharedCommunication>(networks.communication());
             has_two_layers(shared.forward()) && has_two_layers(shared.backward())) {
    Question question(shared, problem, std::move(compute), interrupt);
    bound = bisect(question, upper);
  }
  return std::isnan(bound) ? -kInfinity : std::min(bound, upper);
}

}  // namespace neuroshard
