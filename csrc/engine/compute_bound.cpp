#include "compute_bound.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>

namespace neuroshard {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr int kFirstTrials = 5;  // of prices, where none is known
constexpr int kTrials = 2;       // from a price that was the best before

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

/// The slope of the line from max(low, 0) to max(high, 0), under which ReLU lies between.
double chord(Range range) {
  if (range.low >= 0.0) {
    return 1.0;
  }
  return range.high <= 0.0 ? 0.0 : range.high / range.width();
}

/// The greatest value of a concave function of 0 … last.
template <typename Function>
double greatest_of_concave(const Function& function, std::int64_t last) {
  std::int64_t first = 0;
  while (last - first > 3) {
    const std::int64_t middle = std::midpoint(first, last);
    if (function(middle) < function(middle + 1)) {
      first = middle;
    } else {
      last = middle + 1;
    }
  }
  double greatest = -kInfinity;
  for (std::int64_t i = first; i <= last; ++i) {
    greatest = std::max(greatest, function(i));
  }
  return greatest;
}

}  // namespace

ComputeBound::ComputeBound(const CostNetworks& networks, const ShardSums& sums, int devices,
                           Interrupt& interrupt)
    : interrupt_(&interrupt),
      sums_(sums),
      devices_(devices),
      neurons_(sums.sums()),
      rounded_(sums.kinds()),
      cap_(kInfinity),
      rounding_(kInfinity),
      mean_(-kInfinity),
      least_(-kInfinity),
      line_mean_(-kInfinity),
      ranges_(neurons_),
      loads_(sums.kinds()),
      up_(neurons_),
      down_(neurons_),
      priced_up_(neurons_ * kPrices),
      priced_down_(neurons_ * kPrices),
      values_(sums.kinds()) {
  const std::vector<AffineLayer>& layers = networks.set().network().layers();
  const std::vector<float> weights = layers.back().weights();
  bias_.assign(layers.front().bias().begin(), layers.front().bias().end());
  weights_.assign(weights.begin(), weights.end());
  constant_ = layers.back().bias().front();
  rounded_empty_ = std::abs(constant_);
  for (std::size_t neuron = 0; neuron < neurons_; ++neuron) {
    const double weight = std::abs(weights_[neuron]);
    rounded_empty_ += weight * std::abs(bias_[neuron]);
    const auto contributions = sums_.contributions(neuron);
    for (std::size_t kind = 0; kind < sums_.kinds(); ++kind) {
      rounded_[kind] += weight * std::abs(static_cast<double>(contributions[kind]));
    }
  }
  set_rounding();
  find_widest_ranges();
  Range cost{.low = constant_, .high = constant_};
  for (std::size_t neuron = 0; neuron < neurons_; ++neuron) {
    const double low = weights_[neuron] * std::max(ranges_[neuron].low, 0.0);
    const double high = weights_[neuron] * std::max(ranges_[neuron].high, 0.0);
    cost.low += std::min(low, high);
    cost.high += std::max(low, high);
  }
  most_apart_ = cost.width() + 2.0 * rounding_;
  least_ = cost.low;
  mean_ = cost.low;
}

bool ComputeBound::lower_cap(double cap) {
  cap_ = cap;
  const bool is_first = line_.slope.empty();
  set_mean_sums();
  // The rounding depends on what a device under the cap can hold, and this on the rounding.
  for (int round = is_first ? 3 : 1; round > 0; --round) {
    if (!tighten(is_first ? kFirstTrials : kTrials)) {
      return false;
    }
    set_rounding();
  }
  if (!split_what_is_too_dear()) {
    return false;
  }
  place_concave_neurons();
  return is_possible();
}

/// The engine adds up n contributions and then the products of a dot product, each in an order of
/// its own. So what it computes is off by at most rounding_factor(n + neurons + a few) times the
/// sum of all magnitudes, weighed by |w|. Both this sum and n are bounded over devices under the
/// cap. The computations in double here err in the same way, by 2^-29 times that over all shards.
void ComputeBound::set_rounding() {
  constexpr double kOther = 32.0;  // the product, the bias, and padding of the dot product
  std::ranges::fill(values_, 1.0);
  double shards = sums_.most(values_);
  double magnitude = sums_.most(rounded_);
  const double in_double = magnitude * rounding_factor(shards + kOther) * 0x1p-25;
  if (!line_.slope.empty()) {
    const Range loads{.low = -kInfinity, .high = room()};
    double price = 0.0;
    shards = std::min(shards, sums_.most_within(values_, loads_, loads, kFirstTrials, price));
    price = 0.0;
    magnitude =
        std::min(magnitude, sums_.most_within(rounded_, loads_, loads, kFirstTrials, price));
  }
  const double factor = rounding_factor(shards + static_cast<double>(neurons_) + kOther);
  rounding_ = std::min(rounding_, factor * (magnitude + rounded_empty_) + in_double);
}

void ComputeBound::find_widest_ranges() {
  for (std::size_t neuron = 0; neuron < neurons_; ++neuron) {
    interrupt_->check();
    const auto widest = [&](double sign) {
      copy_contributions(neuron, sign);
      for (double& value : values_) {
        value = std::max(value, 0.0);
      }
      return sums_.most(values_);
    };
    ranges_[neuron] = {.low = bias_[neuron] - widest(-1.0), .high = bias_[neuron] + widest(1.0)};
  }
}

void ComputeBound::copy_contributions(std::size_t neuron, double sign) {
  const auto contributions = sums_.contributions(neuron);
  for (std::size_t kind = 0; kind < values_.size(); ++kind) {
    values_[kind] = sign * static_cast<double>(contributions[kind]);
  }
}

void ComputeBound::set_mean_sums() {
  mean_sums_ = bias_;
  for (std::size_t neuron = 0; neuron < neurons_; ++neuron) {
    const auto contributions = sums_.contributions(neuron);
    double sum = 0.0;
    for (std::size_t table = 0; table < sums_.tables(); ++table) {
      sum += sums_.copies(table) * static_cast<double>(contributions[sums_.base(table)]);
    }
    mean_sums_[neuron] += sum / devices_;
  }
}

/// A line that is nowhere above f where the sums lie in `ranges`. Where w > 0 it is a tangent of
/// w * ReLU, at these sums; where w < 0 a chord.
ComputeBound::Line ComputeBound::line(const std::vector<Range>& ranges,
                                      const std::vector<double>& at) const {
  Line result{.slope = std::vector<double>(neurons_), .constant = constant_};
  for (std::size_t neuron = 0; neuron < neurons_; ++neuron) {
    const Range range = ranges[neuron];
    double slope = chord(range);
    if (range.low < 0.0 && range.high > 0.0) {
      if (weights_[neuron] < 0.0) {
        result.constant -= weights_[neuron] * range.low * slope;
      } else {
        slope = at[neuron] > 0.0 ? 1.0 : 0.0;
      }
    }
    result.slope[neuron] = slope * weights_[neuron];
  }
  return result;
}

/// The line at the sums of an empty device.
double ComputeBound::empty(const Line& line) const {
  return line.constant + dot(line.slope, bias_);
}

std::vector<double> ComputeBound::loads_of(const Line& line) const {
  std::vector<double> loads(sums_.kinds());
  for (std::size_t neuron = 0; neuron < neurons_; ++neuron) {
    const double slope = line.slope[neuron];
    const auto contributions = sums_.contributions(neuron);
    for (std::size_t kind = 0; kind < loads.size(); ++kind) {
      loads[kind] += slope * static_cast<double>(contributions[kind]);
    }
  }
  return loads;
}

/// How far shards can take the load of a device below 0.
double ComputeBound::most_negative(const std::vector<double>& loads) {
  std::ranges::transform(loads, values_.begin(), [](double load) { return std::max(-load, 0.0); });
  return sums_.most(values_);
}

/// Takes a line that is below f for every device under the cap. False where it shows that there is
/// no plan.
bool ComputeBound::use(const Line& line) {
  std::vector<double> loads = loads_of(line);
  const double total = sums_.least(loads);
  const double mean = total / devices_ + empty(line);
  const double least = -most_negative(loads);
  least_ = std::max(least_, empty(line) + least);
  if (mean > line_mean_ || line_.slope.empty()) {
    line_mean_ = mean;
    line_ = line;
    loads_ = std::move(loads);
    total_load_ = total;
    least_load_ = least;
  }
  mean_ = std::max(mean_, mean);
  return is_possible();
}

bool ComputeBound::tighten(int trials) {
  if (!use(line(ranges_, mean_sums_)) || !use(line(ranges_, bias_))) {
    return false;
  }
  const Range loads{.low = -kInfinity, .high = room()};
  for (std::size_t neuron = 0; neuron < neurons_; ++neuron) {
    interrupt_->check();
    Range& range = ranges_[neuron];
    copy_contributions(neuron, 1.0);
    range.high = std::min(
        range.high, bias_[neuron] + sums_.most_within(values_, loads_, loads, trials, up_[neuron]));
    copy_contributions(neuron, -1.0);
    range.low = std::max(range.low, bias_[neuron] - sums_.most_within(values_, loads_, loads,
                                                                      trials, down_[neuron]));
    if (range.low > range.high) {  // by rounding, or there is no device under the cap
      range.low = range.high = std::midpoint(range.low, range.high);
    }
  }
  return true;
}

/// Prices of load that are worth a try for a neuron, of the size of its contributions, which are
/// the values at work.
std::array<double, ComputeBound::kPrices> ComputeBound::prices() const {
  double size = 0.0;
  for (std::size_t table = 0; table < sums_.tables(); ++table) {
    size += sums_.copies(table) * std::abs(values_[sums_.base(table)]);
  }
  const double unit = total_load_ > 0.0 ? size / total_load_ : 0.0;
  std::array<double, kPrices> result = {-0.7, 0.0, 0.25, 0.5, 0.8, 1.2, 1.8, 3.6};
  for (double& price : result) {
    price *= unit;
  }
  return result;
}

/// Bounds for other loads than those under the cap.
void ComputeBound::set_prices() {
  for (std::size_t neuron = 0; neuron < neurons_; ++neuron) {
    interrupt_->check();
    for (const double sign : {1.0, -1.0}) {
      copy_contributions(neuron, sign);
      const std::array<double, kPrices> tried = prices();
      Priced* const priced = (sign > 0.0 ? priced_up_ : priced_down_).data() + neuron * kPrices;
      for (std::size_t i = 0; i < kPrices; ++i) {
        priced[i] = {.price = tried[i], .sum = sums_.most_above(values_, loads_, tried[i])};
      }
    }
  }
}

double ComputeBound::most_of(const std::vector<Priced>& priced, std::size_t neuron,
                             Range loads) const {
  double most = kInfinity;
  for (std::size_t i = neuron * kPrices; i < (neuron + 1) * kPrices; ++i) {
    most = std::min(most, priced[i].sum + price_of(priced[i].price, loads));
  }
  return most;
}

/// Shards that no device under the cap can hold have to be split, which takes some of the splits.
bool ComputeBound::split_what_is_too_dear() {
  set_prices();
  bool is_changed = false;
  for (std::size_t table = 0; table < sums_.tables(); ++table) {
    const std::size_t last = sums_.first(table + 1);
    std::size_t kind = sums_.base(table);
    while (kind < last && alone(kind) >= cap_ + rounding_) {
      ++kind;
    }
    if (kind == last) {
      return false;
    }
    if (kind > sums_.base(table)) {
      is_changed = true;
      if (!sums_.set_base(table, kind)) {
        return false;
      }
    }
  }
  if (is_changed) {
    set_mean_sums();
    line_mean_ = -kInfinity;
    for (int round = 0; round < 2; ++round) {
      if (!tighten(kTrials)) {
        return false;
      }
    }
  }
  return true;
}

/// The least cost of a device under the cap that holds a shard of this kind.
double ComputeBound::alone(std::size_t kind) {
  std::vector<double> sums(neurons_);
  double cost = constant_;
  for (std::size_t neuron = 0; neuron < neurons_; ++neuron) {
    sums[neuron] = bias_[neuron] + static_cast<double>(sums_.contributions(neuron)[kind]);
    cost += weights_[neuron] * std::max(sums[neuron], 0.0);
  }
  if (cost < cap_) {  // when nothing else is there, at least
    return cost;
  }
  const Range others{.low = -kInfinity, .high = room() - loads_[kind]};
  if (others.high < least_load_) {
    return kInfinity;
  }
  std::vector<Range> ranges(neurons_);
  for (std::size_t neuron = 0; neuron < neurons_; ++neuron) {
    // The sum over the other shards is at most that over any, the shard itself included.
    const double high = sums[neuron] + most_of(priced_up_, neuron, others);
    const double low = sums[neuron] - most_of(priced_down_, neuron, others);
    ranges[neuron] = {.low = std::min(std::max(ranges_[neuron].low, low), sums[neuron]),
                      .high = std::max(std::min(ranges_[neuron].high, high), sums[neuron])};
  }
  const Line with_it = line(ranges, sums);
  return with_it.constant + dot(with_it.slope, sums) - most_negative(loads_of(with_it));
}

/// Where w < 0, f falls with ReLU of the neuron, which is more than a line where sums of devices
/// differ in sign. In the mean over the devices, let it be more than zero on k of them. The sum of
/// ReLU over devices is then that of the sums of these k; their loads add up to at most k times
/// that of the cap, and leave no more than that for each of the others.
void ComputeBound::place_concave_neurons() {
  const double most_load = room();
  Line of_mean{.slope = std::vector<double>(neurons_), .constant = constant_};
  for (std::size_t neuron = 0; neuron < neurons_; ++neuron) {
    const Range range = ranges_[neuron];
    const double slope = chord(range);
    if (weights_[neuron] >= 0.0) {
      const bool is_mixed = range.low < 0.0 && range.high > 0.0;
      of_mean.slope[neuron] =
          weights_[neuron] * (is_mixed ? (mean_sums_[neuron] > 0.0 ? 1.0 : 0.0) : slope);
      continue;
    }
    if (range.high <= 0.0 || range.low >= 0.0) {
      of_mean.slope[neuron] = weights_[neuron] * slope;
      continue;
    }
    interrupt_->check();
    copy_contributions(neuron, 1.0);
    const std::array<double, kPrices> to_try = prices();
    double best = kInfinity;
    double best_slope = 0.0;
    double best_excess = 0.0;
    std::vector<double> excess(values_.size());
    for (const double tried : {slope, 0.0, 1.0}) {
      // The mean of ReLU(z) - tried * z.
      std::array<Priced, kPrices> priced;
      for (std::size_t i = 0; i < kPrices; ++i) {
        const double price = to_try[i];
        for (std::size_t kind = 0; kind < excess.size(); ++kind) {
          excess[kind] =
              std::max(values_[kind] - price * loads_[kind], 0.0) - tried * values_[kind];
        }
        priced[i] = {.price = price, .sum = sums_.most(excess)};
      }
      // Of so many devices above zero. It is concave in their number: a least of such functions.
      const auto most_with = [&](std::int64_t count) {
        const auto above = static_cast<double>(count);
        const Range loads{
            .low = std::max(total_load_ - (devices_ - above) * most_load, above * least_load_),
            .high = above * most_load};
        double sum = kInfinity;
        for (const Priced& one : priced) {
          sum = std::min(sum, one.sum + price_of(one.price, loads));
        }
        return (above * bias_[neuron] + sum) / devices_;
      };
      const double most = greatest_of_concave(most_with, static_cast<std::int64_t>(devices_));
      const double offset = std::min(most - tried * bias_[neuron],
                                     std::max(range.high * (1.0 - tried), -range.low * tried));
      if (const double value = offset + tried * mean_sums_[neuron]; value < best) {
        best = value;
        best_slope = tried;
        best_excess = offset;
      }
    }
    of_mean.slope[neuron] = weights_[neuron] * best_slope;
    of_mean.constant += weights_[neuron] * best_excess;
  }
  mean_ = std::max(mean_, sums_.least(loads_of(of_mean)) / devices_ + empty(of_mean));
}

}  // namespace neuroshard
