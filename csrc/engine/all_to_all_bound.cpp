#include "all_to_all_bound.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace neuroshard {

namespace {

using Feature = SharedCommunication::Feature;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

/// The least of factor * x for x in the range.
double least(double factor, Range x) { return factor * (factor > 0.0 ? x.low : x.high); }

/// Two lines through 0 or not: slope * x + constant.
struct ReluLines {
  double below;  // slope; its constant is 0
  double above;
  double above_constant;
};

/// Lines between which ReLU lies for x in the range; the one below touches it at `touched`.
ReluLines relu_lines(Range x, double touched) {
  if (x.low >= 0.0) {
    return {.below = 1.0, .above = 1.0, .above_constant = 0.0};
  }
  if (x.high <= 0.0) {
    return {.below = 0.0, .above = 0.0, .above_constant = 0.0};
  }
  const double slope = x.high / x.width();
  return {.below = touched > 0.0 ? 1.0 : 0.0, .above = slope, .above_constant = -x.low * slope};
}

std::vector<double> row_of(const AffineLayer& layer, std::size_t row, std::size_t first,
                           std::size_t count) {
  const std::vector<float> weights = layer.weights();
  const auto begin = weights.begin() + static_cast<std::ptrdiff_t>(row * layer.inputs() + first);
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace

std::vector<AllToAllBound::NodeClass> AllToAllBound::node_classes(std::int64_t devices_per_node,
                                                                  int devices) {
  const std::int64_t size = std::min<std::int64_t>(devices_per_node, devices);
  const std::int64_t whole_nodes = devices / size;
  std::vector<NodeClass> classes = {
      {.size = static_cast<double>(size), .count = static_cast<double>(whole_nodes)}};
  if (devices % size != 0) {
    classes.push_back({.size = static_cast<double>(devices % size), .count = 1.0});
  }
  return classes;
}

AllToAllBound::AllToAllBound(const SharedNetworks& networks,
                             const SharedCommunication& communication, int devices,
                             double output_dim)
    : devices_(devices),
      output_dim_(output_dim),
      classes_(node_classes(communication.devices_per_node(), devices)),
      has_wait_(networks.device().inputs() > Feature::kWait) {
  // As SharedCosts has it.
  constexpr double kBytesPerMB = 1e6;
  const auto per_dim = static_cast<double>(static_cast<float>(
      static_cast<double>(communication.batch_size()) * sizeof(float) / devices_ / kBytesPerMB));
  const Network& device = networks.device();
  const AffineLayer& first = device.layers().front();
  for (const NodeClass& of_class : classes_) {
    const double inside = of_class.size - 1.0;
    const double outside = devices_ - of_class.size;
    std::array<Affine, Feature::kForwardFeatures> features;
    features[Feature::kSentInside].dim = per_dim * inside;
    features[Feature::kSentOutside].dim = per_dim * outside;
    features[Feature::kReceivedInside] = {.dim = -per_dim, .node = per_dim};
    features[Feature::kReceivedOutside] = {.constant = per_dim * output_dim_, .node = -per_dim};
    features[Feature::kPeersInside].constant = inside;
    features[Feature::kPeersOutside].constant = outside;
    features[Feature::kLogDevices].constant = std::log2(devices_);
    features[Feature::kWait].wait = 1.0;
    std::vector<Affine>& hidden = hidden_.emplace_back(first.outputs());
    for (std::size_t unit = 0; unit < hidden.size(); ++unit) {
      hidden[unit].constant = first.bias()[unit];
      const std::vector<double> weights = row_of(first, unit, 0, first.inputs());
      for (std::size_t i = 0; i < weights.size(); ++i) {
        double factor = weights[i];
        if (!device.mean().empty()) {
          factor /= device.deviation()[i];
          hidden[unit].constant -= factor * device.mean()[i];
        }
        hidden[unit].add(factor, features[i]);
      }
    }
  }
  const AffineLayer& last = device.layers().back();
  channel_bias_.assign(last.bias().begin(), last.bias().end());
  for (std::size_t channel = 0; channel < last.outputs(); ++channel) {
    channel_weights_.push_back(row_of(last, channel, 0, last.inputs()));
  }
  const std::vector<AffineLayer>& head = networks.head().layers();
  const std::size_t channels = networks.channels();
  head_bias_.assign(head.front().bias().begin(), head.front().bias().end());
  for (std::size_t unit = 0; unit < head.front().outputs(); ++unit) {
    head_.push_back({.own = row_of(head.front(), unit, 0, channels),
                     .mean = row_of(head.front(), unit, 2 * channels, channels),
                     .maximum = row_of(head.front(), unit, channels, channels)});
    low_.push_back(row(absorbed(head_.back())));
    high_.push_back(row(absorbed(negative(head_.back()))));
  }
  cost_weights_ = row_of(head.back(), 0, 0, head.back().inputs());
  cost_bias_ = head.back().bias().front();
  rounding_ = affine_rounding(networks, per_dim);
}

/// The engine's features of a device differ from the exact ones by some roundings, and by those of
/// the sums of output dims; what they do to its cost is bounded layer by layer. All of this is
/// affine in how large features are, so it is found from four cases. The computations in double
/// here err by some 2^-29 times that, which `rounded` has room for.
AllToAllBound::Affine AllToAllBound::affine_rounding(const SharedNetworks& networks,
                                                     double per_dim) const {
  const auto at = [&](double dim, double node, double wait) {
    const double dims_error = rounding_factor(devices_ + 8.0);
    const double most_inside = classes_.front().size - 1.0;
    const double most_outside = devices_ - classes_.back().size;
    const auto sent = [&](double peers) {
      return Rounded{.magnitude = per_dim * peers * dim,
                     .error = rounding_factor(8.0) * per_dim * peers * dim};
    };
    const auto received = [&](double dims) {
      return Rounded{.magnitude = per_dim * dims, .error = dims_error * per_dim * dims};
    };
    std::vector<Rounded> features(Feature::kForwardFeatures);
    features[Feature::kSentInside] = sent(most_inside);
    features[Feature::kSentOutside] = sent(most_outside);
    features[Feature::kReceivedInside] = received(node);
    features[Feature::kReceivedOutside] = received(output_dim_);
    features[Feature::kPeersInside].magnitude = most_inside;
    features[Feature::kPeersOutside].magnitude = most_outside;
    const double log = std::log2(devices_);
    features[Feature::kLogDevices] = {.magnitude = log, .error = rounding_factor(4.0) * log};
    // Starts are rounded, and the differences of them.
    features[Feature::kWait] = {.magnitude = wait, .error = rounding_factor(8.0) * wait};
    features.resize(networks.device().inputs());
    const std::vector<Rounded> channels = rounded(networks.device(), std::move(features));
    std::vector<Rounded> head;
    for (const bool is_mean : {false, false, true}) {  // own, maximum, mean
      for (Rounded channel : channels) {
        if (is_mean) {
          channel.error += rounding_factor(devices_ + 1.0) * (channel.magnitude + channel.error);
        }
        head.push_back(channel);
      }
    }
    return rounded(networks.head(), std::move(head)).front().error;
  };
  const double constant = at(0.0, 0.0, 0.0);
  return {.constant = constant,
          .dim = at(1.0, 0.0, 0.0) - constant,
          .node = at(0.0, 1.0, 0.0) - constant,
          .wait = at(0.0, 0.0, 1.0) - constant};
}

/// The maximum of a channel is at least the device's own, and at least the mean: so a positive
/// weight of it may be moved to these, as far as they have negative ones, and the sum is no larger.
AllToAllBound::Channels AllToAllBound::absorbed(Channels channels) {
  for (std::size_t i = 0; i < channels.maximum.size(); ++i) {
    for (std::vector<double>* other : {&channels.own, &channels.mean}) {
      const double moved =
          std::min(std::max(channels.maximum[i], 0.0), std::max(-(*other)[i], 0.0));
      (*other)[i] += moved;
      channels.maximum[i] -= moved;
    }
  }
  return channels;
}

/// The mean over all devices.
AllToAllBound::Channels AllToAllBound::of_mean(const Channels& channels) {
  Channels result = channels;
  for (std::size_t i = 0; i < channels.own.size(); ++i) {
    result.mean[i] += channels.own[i];
    result.own[i] = 0.0;
  }
  return result;
}

AllToAllBound::Channels AllToAllBound::negative(Channels channels) {
  for (std::vector<double>* weights : {&channels.own, &channels.mean, &channels.maximum}) {
    for (double& weight : *weights) {
      weight = -weight;
    }
  }
  return channels;
}

AllToAllBound::Row AllToAllBound::row(const Channels& channels) const {
  const std::size_t units = channel_weights_.front().size();
  Row result{.own = std::vector<double>(units),
             .mean = std::vector<double>(units),
             .maximum = channels.maximum,
             .constant = dot(channels.own, channel_bias_) + dot(channels.mean, channel_bias_)};
  for (std::size_t channel = 0; channel < channel_weights_.size(); ++channel) {
    for (std::size_t unit = 0; unit < units; ++unit) {
      result.own[unit] += channels.own[channel] * channel_weights_[channel][unit];
      result.mean[unit] += channels.mean[channel] * channel_weights_[channel][unit];
    }
  }
  return result;
}

/// The sum of the head's hidden units before ReLU, without their biases.
AllToAllBound::Channels AllToAllBound::weighed_head(const std::vector<double>& weights) const {
  const std::size_t channels = channel_weights_.size();
  Channels sum{.own = std::vector<double>(channels),
               .mean = std::vector<double>(channels),
               .maximum = std::vector<double>(channels)};
  for (std::size_t unit = 0; unit < head_.size(); ++unit) {
    for (std::size_t channel = 0; channel < channels; ++channel) {
      sum.own[channel] += weights[unit] * head_[unit].own[channel];
      sum.mean[channel] += weights[unit] * head_[unit].mean[channel];
      sum.maximum[channel] += weights[unit] * head_[unit].maximum[channel];
    }
  }
  return sum;
}

AllToAllBound::ClassLines AllToAllBound::lines(const Box& box, const Box& touched) const {
  ClassLines result(classes_.size());
  for (std::size_t i = 0; i < classes_.size(); ++i) {
    for (const Affine& unit : hidden_[i]) {
      const auto lowest = [&](double sign, const Box& within) {
        return sign * unit.constant + neuroshard::least(sign * unit.dim, within.dim) +
               neuroshard::least(sign * unit.node, within.node) +
               neuroshard::least(sign * unit.wait, within.wait);
      };
      const Range value{.low = lowest(1.0, box), .high = -lowest(-1.0, box)};
      const ReluLines relu =
          relu_lines(value, std::midpoint(lowest(1.0, touched), -lowest(-1.0, touched)));
      std::array<Affine, 2>& below_above = result[i].emplace_back().lines;
      below_above[0].add(relu.below, unit);
      below_above[1].add(relu.above, unit);
      below_above[1].constant += relu.above_constant;
    }
  }
  return result;
}

AllToAllBound::ClassLines AllToAllBound::lines(const Box& box) const { return lines(box, box); }

/// Of a weighed sum of hidden units.
AllToAllBound::Affine AllToAllBound::below(const std::vector<double>& weights,
                                           const Lines& lines) const {
  Affine sum;
  for (std::size_t unit = 0; unit < weights.size(); ++unit) {
    sum.add(weights[unit], lines[unit].lines[weights[unit] > 0.0 ? 0 : 1]);
  }
  return sum;
}

/// The least of a weighed sum of the hidden units of a device in the box.
double AllToAllBound::least_own(const std::vector<double>& weights, const ClassLines& lines,
                                const Box& box) const {
  double result = kInfinity;
  for (const Lines& of_class : lines) {
    const Affine sum = below(weights, of_class);
    result = std::min(result, sum.constant + neuroshard::least(sum.dim, box.dim) +
                                  neuroshard::least(sum.node, box.node) +
                                  neuroshard::least(sum.wait, box.wait));
  }
  return result;
}

/// The least of a weighed sum of the means of hidden units. The output dims of the nodes add up to
/// that of all, and those of the devices of a node to that of the node, which as many devices have.
double AllToAllBound::least_mean(const std::vector<double>& weights, const Known& known) const {
  double constant = 0.0;
  double of_dim = kInfinity;
  double of_wait = kInfinity;
  for (std::size_t i = 0; i < classes_.size(); ++i) {
    const Affine sum = below(weights, known.mean_lines[i]);
    constant += classes_[i].size * classes_[i].count / devices_ * sum.constant;
    of_dim = std::min(of_dim, sum.dim + classes_[i].size * sum.node);
    of_wait = std::min(of_wait, sum.wait);
  }
  return constant + of_dim * output_dim_ / devices_ + neuroshard::least(of_wait, known.mean_wait);
}

/// The least of a row without the device's own part.
double AllToAllBound::others(const Row& row, const Known& known) const {
  double sum = row.constant + least_mean(row.mean, known);
  for (std::size_t channel = 0; channel < row.maximum.size(); ++channel) {
    sum += neuroshard::least(row.maximum[channel], known.maximum[channel]);
  }
  return sum;
}

AllToAllBound::Box AllToAllBound::box_of(const LoadCell& cell, bool has_wait) {
  return {.dim = {.low = cell.least.low, .high = std::min(cell.most.high, cell.most_of_node.high)},
          .node = {.low = cell.least_of_node.low, .high = cell.most_of_node.high},
          .wait = {.low = 0.0, .high = has_wait ? cell.longest_wait.high : 0.0}};
}

AllToAllBound::Known AllToAllBound::know(const LoadCell& cell) const {
  Known known{.all = box_of(cell, has_wait_),
              .mean_wait = has_wait_ ? cell.mean_wait : Range{},
              .mean_lines = {},
              .mean = {},
              .maximum = {},
              .low = {},
              .high = {}};
  double nodes = 0.0;
  for (const NodeClass& of_class : classes_) {
    nodes += of_class.count;
  }
  const double dim = output_dim_ / devices_;
  const double node = output_dim_ / nodes;
  known.mean_lines = lines(known.all, {.dim = {.low = dim, .high = dim},
                                       .node = {.low = node, .high = node},
                                       .wait = known.mean_wait});
  // In each of these there is a device.
  std::vector<Box> boxes(2, known.all);
  boxes[0].dim.low = cell.most.low;
  boxes[1].dim.high = cell.least.high;
  if (nodes > 1.0) {
    boxes.resize(4, known.all);
    boxes[2].node.low = cell.most_of_node.low;
    boxes[3].node.high = cell.least_of_node.high;
  }
  if (has_wait_) {
    boxes.resize(boxes.size() + 2, known.all);
    boxes[boxes.size() - 2].wait = {};
    boxes[boxes.size() - 1].wait.low = cell.longest_wait.low;
  }
  std::vector<ClassLines> lines_of;
  lines_of.reserve(boxes.size());
  for (const Box& box : boxes) {
    lines_of.push_back(lines(box));
  }
  const ClassLines lines_of_all = lines(known.all);
  std::vector<double> minus(channel_weights_.front().size());
  for (std::size_t channel = 0; channel < channel_weights_.size(); ++channel) {
    const std::vector<double>& weights = channel_weights_[channel];
    std::ranges::transform(weights, minus.begin(), std::negate<>{});
    double low = least_mean(weights, known);
    known.mean.push_back(low + channel_bias_[channel]);
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      low = std::max(low, least_own(weights, lines_of[i], boxes[i]));
    }
    const double high = std::max(low, -least_own(minus, lines_of_all, known.all));
    known.maximum.push_back(
        {.low = low + channel_bias_[channel], .high = high + channel_bias_[channel]});
  }
  for (std::size_t unit = 0; unit < head_.size(); ++unit) {
    known.low.push_back(others(low_[unit], known));
    known.high.push_back(others(high_[unit], known));
  }
  return known;
}

/// Ranges of the head's hidden units before ReLU, for a device in the box.
std::vector<Range> AllToAllBound::head_units(const Known& known, const ClassLines& lines,
                                             const Box& box) const {
  std::vector<Range> units;
  units.reserve(head_.size());
  for (std::size_t unit = 0; unit < head_.size(); ++unit) {
    units.push_back(
        {.low = head_bias_[unit] + known.low[unit] + least_own(low_[unit].own, lines, box),
         .high = head_bias_[unit] - known.high[unit] - least_own(high_[unit].own, lines, box)});
  }
  return units;
}

/// The head's hidden units before ReLU for about the mean device.
std::vector<double> AllToAllBound::near_mean(const Known& known, bool is_low) const {
  std::vector<double> units = head_bias_;
  for (std::size_t unit = 0; unit < head_.size(); ++unit) {
    units[unit] += dot(head_[unit].own, known.mean) + dot(head_[unit].mean, known.mean);
    for (std::size_t channel = 0; channel < known.mean.size(); ++channel) {
      const Range maximum = known.maximum[channel];
      units[unit] += head_[unit].maximum[channel] *
                     (is_low ? maximum.low : std::midpoint(maximum.low, maximum.high));
    }
  }
  return units;
}

AllToAllBound::HeadLine AllToAllBound::head_line(const std::vector<Range>& units,
                                                 const std::vector<double>& touched) const {
  HeadLine line{.slope = cost_weights_, .constant = cost_bias_};
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    const ReluLines relu = relu_lines(units[unit], touched[unit]);
    if (cost_weights_[unit] > 0.0) {
      line.slope[unit] *= relu.below;
    } else {
      line.slope[unit] *= relu.above;
      line.constant += cost_weights_[unit] * relu.above_constant;
    }
  }
  line.constant += dot(line.slope, head_bias_);
  return line;
}

double AllToAllBound::least_cost(const Known& known, const Box& box) const {
  const ClassLines lines_of = lines(box);
  const std::vector<Range> units = head_units(known, lines_of, box);
  double result = -kInfinity;
  std::vector<double> touched(units.size());
  for (const double share : {0.0, 0.5, 1.0}) {
    std::ranges::transform(units, touched.begin(),
                           [&](Range unit) { return std::lerp(unit.low, unit.high, share); });
    const HeadLine line = head_line(units, touched);
    const Row sum = row(absorbed(weighed_head(line.slope)));
    result =
        std::max(result, line.constant + others(sum, known) + least_own(sum.own, lines_of, box));
  }
  return result - rounding(known.all);
}

double AllToAllBound::least_mean_cost(const Known& known) const {
  const ClassLines lines_of = lines(known.all);
  const std::vector<Range> units = head_units(known, lines_of, known.all);
  double result = -kInfinity;
  for (const bool is_low : {false, true}) {
    const HeadLine line = head_line(units, near_mean(known, is_low));
    const Channels sum = of_mean(weighed_head(line.slope));
    Channels by_mean = sum;  // the maximum is at least the mean
    for (std::size_t channel = 0; channel < sum.maximum.size(); ++channel) {
      const double moved = std::max(sum.maximum[channel], 0.0);
      by_mean.mean[channel] += moved;
      by_mean.maximum[channel] -= moved;
    }
    for (const Channels& way : {sum, absorbed(sum), by_mean}) {
      result = std::max(result, line.constant + others(row(way), known));
    }
  }
  return result - rounding(known.all);
}

AllToAllBound::Costs AllToAllBound::least(const LoadCell& cell) const {
  const Known known = know(cell);
  Costs costs{.mean = least_mean_cost(known), .any = -kInfinity, .last = -kInfinity};
  Box last = known.all;
  last.wait = {};
  costs.last = least_cost(known, last);
  if (!has_wait_) {
    costs.any = costs.last;
  }
  return costs;
}

/// Devices differ in their own channels alone, by how much hidden units can differ.
double AllToAllBound::most_apart(const LoadCell& cell) const {
  const Box box = box_of(cell, has_wait_);
  std::vector<double> apart(channel_weights_.front().size());
  for (std::size_t unit = 0; unit < apart.size(); ++unit) {
    Range values{.low = kInfinity, .high = -kInfinity};
    for (const std::vector<Affine>& hidden : hidden_) {
      const Affine& of_unit = hidden[unit];
      const auto lowest = [&](double sign) {
        return sign * of_unit.constant + neuroshard::least(sign * of_unit.dim, box.dim) +
               neuroshard::least(sign * of_unit.node, box.node) +
               neuroshard::least(sign * of_unit.wait, box.wait);
      };
      values.low = std::min(values.low, std::max(lowest(1.0), 0.0));
      values.high = std::max({values.high, -lowest(-1.0), 0.0});
    }
    apart[unit] = values.width();
  }
  double result = 0.0;
  for (std::size_t unit = 0; unit < head_.size(); ++unit) {
    const Row of_unit = row({.own = head_[unit].own,
                             .mean = std::vector<double>(channel_bias_.size()),
                             .maximum = std::vector<double>(channel_bias_.size())});
    for (std::size_t i = 0; i < apart.size(); ++i) {
      result += std::abs(cost_weights_[unit] * of_unit.own[i]) * apart[i];
    }
  }
  return result + 2.0 * rounding(box);
}

}  // namespace neuroshard
