#include "communication_bound.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "aligned.hpp"
#include "kernels/kernels.hpp"

namespace neuroshard {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

CommunicationBound::CommunicationBound(const SharedCommunication& networks, int devices,
                                       double output_dim, double most_apart)
    : devices_(devices),
      output_dim_(output_dim),
      classes_(AllToAllBound::node_classes(networks.devices_per_node(), devices)),
      forward_(networks.forward(), networks, devices, output_dim),
      backward_(networks.backward(), networks, devices, output_dim) {
  for (const AllToAllBound::NodeClass& of_class : classes_) {
    nodes_ += of_class.count;
    largest_node_ = std::max(largest_node_, of_class.size);
  }
  const auto lanes = static_cast<std::size_t>(devices) * kLanes;
  const AlignedVector<float> dims(lanes, static_cast<float>(output_dim_ / devices_));
  const AlignedVector<float> starts(lanes);
  AlignedVector<float> costs(lanes);
  SharedCosts even(networks, devices);
  even.forward(dims.data(), starts.data(), costs.data());
  unit_ = std::max(unit_, static_cast<double>(std::ranges::max(costs)));
  even.backward(dims.data(), costs.data());
  unit_ = std::max(unit_, unit_ + static_cast<double>(std::ranges::max(costs)));
  add(root(most_apart + backward_.most_apart(root(0.0))), {.mean_forward = -kInfinity,
                                                           .last_forward = -kInfinity,
                                                           .mean_backward = -kInfinity,
                                                           .any_backward = -kInfinity});
}

LoadCell CommunicationBound::root(double most_wait) const {
  const double dim = output_dim_ / devices_;
  const double node = output_dim_ / nodes_;
  return {.most = {.low = dim, .high = output_dim_},
          .least = {.low = 0.0, .high = dim},
          .most_of_node = {.low = node, .high = output_dim_},
          .least_of_node = {.low = nodes_ > 1.0 ? 0.0 : node, .high = node},
          .longest_wait = {.low = 0.0, .high = most_wait},
          .mean_wait = {.low = 0.0, .high = most_wait * (devices_ - 1.0) / devices_}};
}

/// Makes the ranges of a cell smaller by what they say of each other. False where no loads are
/// left.
bool CommunicationBound::tighten(LoadCell& cell) const {
  const double others = std::max(devices_ - 1.0, 1.0);
  const double other_nodes = std::max(nodes_ - 1.0, 1.0);
  const auto raise = [](double& value, double to) { value = std::max(value, to); };
  const auto lower = [](double& value, double to) { value = std::min(value, to); };
  // Of two numbers that add up, one of them to so many times the other.
  const auto share = [&](Range& most, Range& least, double count) {
    raise(most.low, (output_dim_ - least.high) / count);
    lower(most.high, output_dim_ - count * least.low);
    lower(least.high, (output_dim_ - most.low) / count);
    raise(least.low, output_dim_ - count * most.high);
  };
  for (int round = 0; round < 2; ++round) {
    // At least one device does not wait, and one waits longest.
    lower(cell.longest_wait.high, cell.mean_wait.high * devices_);
    raise(cell.mean_wait.low, cell.longest_wait.low / devices_);
    lower(cell.mean_wait.high, cell.longest_wait.high * (devices_ - 1.0) / devices_);
    raise(cell.longest_wait.low, cell.mean_wait.low * devices_ / others);
    if (devices_ > 1.0) {
      share(cell.most, cell.least, others);
    }
    if (nodes_ > 1.0) {
      lower(cell.most_of_node.high, largest_node_ * cell.most.high);
      share(cell.most_of_node, cell.least_of_node, other_nodes);
      lower(cell.most.high, cell.most_of_node.high);
      raise(cell.most.low, cell.most_of_node.low / largest_node_);
      if (classes_.size() == 1) {
        raise(cell.least_of_node.low, largest_node_ * cell.least.low);
        lower(cell.least.high, cell.least_of_node.high / largest_node_);
      }
    }
  }
  const double slack = 1e-9 * output_dim_;  // for rounding
  const auto holds = [](Range& range, double tolerance) {
    if (range.low > range.high && range.low <= range.high + tolerance) {
      std::swap(range.low, range.high);
    }
    return range.low <= range.high;
  };
  return holds(cell.most, slack) && holds(cell.least, slack) && holds(cell.most_of_node, slack) &&
         holds(cell.least_of_node, slack) && holds(cell.longest_wait, 1e-9) &&
         holds(cell.mean_wait, 1e-9);
}

/// What is known of a cell that holds this one holds for this one too.
void CommunicationBound::add(LoadCell cell, const AllToAllCosts& known) {
  if (!tighten(cell)) {
    return;
  }
  const AllToAllBound::Costs forward = forward_.least(cell);
  const AllToAllBound::Costs backward = backward_.least(cell);
  cells_.push_back({.cell = cell,
                    .costs = {.mean_forward = std::max(forward.mean, known.mean_forward),
                              .last_forward = std::max(forward.last, known.last_forward),
                              .mean_backward = std::max(backward.mean, known.mean_backward),
                              .any_backward = std::max(backward.any, known.any_backward)}});
}

/// Where its range is widest, in terms of what it may matter to costs.
void CommunicationBound::halve(std::size_t number) {
  struct Choice {
    Range LoadCell::* range;
    double scale;  // ms for each unit of it
  };
  const double of_dim = unit_ / (output_dim_ / devices_);
  const double of_node = unit_ / (output_dim_ / nodes_);
  const std::array<Choice, 6> choices = {{{.range = &LoadCell::most, .scale = of_dim},
                                          {.range = &LoadCell::least, .scale = of_dim},
                                          {.range = &LoadCell::longest_wait, .scale = 0.25},
                                          {.range = &LoadCell::most_of_node, .scale = of_node},
                                          {.range = &LoadCell::least_of_node, .scale = of_node},
                                          {.range = &LoadCell::mean_wait, .scale = 1.0}}};
  const auto [cell, known] = cells_[number];
  const auto* const widest = std::ranges::max_element(choices, {}, [&](const Choice& choice) {
    return (cell.*choice.range).width() * choice.scale;
  });
  const Range range = cell.*widest->range;
  double middle = std::midpoint(range.low, range.high);
  if (widest->range == &LoadCell::most || widest->range == &LoadCell::most_of_node) {
    if (range.high > 2.0 * range.low) {
      middle = std::sqrt(range.low * range.high);
    }
  } else if (widest->range == &LoadCell::longest_wait || widest->range == &LoadCell::mean_wait) {
    constexpr double kShortWait = 0.2;  // of the costs
    const double low = std::max(range.low, kShortWait * unit_);
    if (range.high > 4.0 * low) {
      middle = 2.0 * low;
    }
  }
  LoadCell low = cell;
  LoadCell high = cell;
  (low.*widest->range).high = middle;
  (high.*widest->range).low = middle;
  std::swap(cells_[number], cells_.back());
  cells_.pop_back();
  add(low, known);
  add(high, known);
}

double CommunicationBound::least(const Value& value, int halvings, Interrupt& interrupt) {
  for (;; --halvings) {
    interrupt.check();
    double least = kInfinity;
    std::size_t number = 0;
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      const double bound = value(cells_[i].costs, cells_[i].cell);
      if (std::isnan(bound)) {  // of networks with huge weights: nothing is known
        return -kInfinity;
      }
      if (bound < least) {
        least = bound;
        number = i;
      }
    }
    if (halvings <= 0 || least == kInfinity) {
      return least;
    }
    halve(number);
  }
}

}  // namespace neuroshard
