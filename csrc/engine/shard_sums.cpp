#include "shard_sums.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace neuroshard {

namespace {

constexpr double kMostSorted = 64.0;  // splits: with more, every one that adds something counts

/// A price of the size of the values.
double scale(std::span<const double> values, std::span<const double> loads) {
  double value = 0.0;
  double load = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    value += std::abs(values[i]);
    load += std::abs(loads[i]);
  }
  return load > 0.0 ? value / load : 0.0;
}

}  // namespace

ShardSums::ShardSums(const CostNetworks& networks, const Problem& problem, ShardCatalog& catalog,
                     int max_splits)
    : sums_(networks.set().network().layers().front().outputs()), splits_(max_splits) {
  // Level by level: the catalog encodes several kinds at once.
  std::vector<ShardCatalog::Kind> level(static_cast<std::size_t>(problem.tables()));
  for (std::size_t table = 0; table < level.size(); ++table) {
    level[table] = static_cast<ShardCatalog::Kind>(table);
  }
  for (int splits = 0; splits < max_splits && !level.empty(); ++splits) {
    std::erase_if(level, [&](ShardCatalog::Kind kind) { return catalog.pieces(kind) == 1; });
    if (!level.empty()) {
      catalog.add_pieces(level);
      std::ranges::transform(level, level.begin(),
                             [&](ShardCatalog::Kind kind) { return catalog.piece(kind); });
    }
  }
  for (ShardCatalog::Kind table = 0; table < problem.tables(); ++table) {
    first_.push_back(kinds_.size());
    double count = 1.0;
    for (ShardCatalog::Kind kind = table; kind != ShardCatalog::kNone; kind = catalog.piece(kind)) {
      const bool is_split = catalog.piece(kind) != ShardCatalog::kNone;
      kinds_.push_back(kind);
      pieces_.push_back(is_split ? static_cast<double>(catalog.pieces(kind)) : 0.0);
      most_split_.push_back(is_split ? count : 0.0);
      count *= pieces_.back();
    }
  }
  base_ = first_;
  copies_.assign(tables(), 1.0);
  above_.resize(kinds());
  gains_.resize(kinds());
  contributions_.resize(sums_ * kinds());
  for (std::size_t i = 0; i < kinds(); ++i) {
    const float* of_kind = catalog.contribution(kinds_[i]);
    for (std::size_t sum = 0; sum < sums_; ++sum) {
      contributions_[sum * kinds() + i] = of_kind[sum];
    }
  }
}

bool ShardSums::set_base(std::size_t table, std::size_t kind) {
  for (; base_[table] < kind; ++base_[table]) {
    most_split_[base_[table]] = 0.0;
    splits_ -= copies_[table];
    copies_[table] *= pieces_[base_[table]];
  }
  return splits_ >= 0.0;
}

double ShardSums::most(std::span<const double> values) {
  double sum = 0.0;
  for (std::size_t table = 0; table < base_.size(); ++table) {
    sum += copies_[table] * values[base_[table]];
  }
  if (splits_ <= 0.0) {
    return sum;
  }
  for (std::size_t kind = 0; kind + 1 < values.size(); ++kind) {
    gains_[kind] = pieces_[kind] * values[kind + 1] - values[kind];
  }
  if (splits_ > kMostSorted) {
    for (std::size_t kind = 0; kind < gains_.size(); ++kind) {
      sum += std::max(gains_[kind], 0.0) * std::min(most_split_[kind], splits_);
    }
    return sum;
  }
  top_.clear();
  held_ = 0.0;
  double floor = 0.0;
  for (std::size_t kind = 0; kind < gains_.size(); ++kind) {
    if (gains_[kind] > floor && most_split_[kind] > 0.0) {
      insert({.gain = gains_[kind], .count = most_split_[kind]});
      floor = held_ >= splits_ ? top_.back().gain : 0.0;
    }
  }
  double left = splits_;
  for (const Gain& of_link : top_) {
    const double count = std::min(of_link.count, left);
    sum += of_link.gain * count;
    left -= count;
  }
  return sum;
}

/// Keeps the largest gains of as many splits as there may be.
void ShardSums::insert(Gain gain) {
  top_.push_back(gain);
  for (std::size_t i = top_.size() - 1; i > 0 && top_[i - 1].gain < gain.gain; --i) {
    std::swap(top_[i - 1], top_[i]);
  }
  held_ += gain.count;
  while (held_ - top_.back().count >= splits_) {
    held_ -= top_.back().count;
    top_.pop_back();
  }
}

double ShardSums::least(std::span<const double> values) {
  std::ranges::transform(values, above_.begin(), [](double value) { return -value; });
  return -most(above_);
}

double ShardSums::most_above(std::span<const double> values, std::span<const double> loads,
                             double price) {
  for (std::size_t i = 0; i < above_.size(); ++i) {
    above_[i] = std::max(values[i] - price * loads[i], 0.0);
  }
  return most(above_);
}

double ShardSums::most_within(std::span<const double> values, std::span<const double> loads,
                              Range range, int trials, double& price) {
  // The bound is convex in the price; where it falls, a higher price is better.
  struct Trial {
    double price;
    double bound;
    double slope;
  };
  const auto try_price = [&](double at, bool is_last) {
    const double bound = most_above(values, loads, at) + price_of(at, range);
    Trial trial{.price = at, .bound = bound, .slope = 0.0};
    if (is_last) {
      return trial;
    }
    double load = 0.0;
    for (std::size_t table = 0; table < base_.size(); ++table) {
      load += above_[base_[table]] > 0.0 ? copies_[table] * loads[base_[table]] : 0.0;
    }
    trial.slope = (at >= 0.0 ? range.high : range.low) - load;
    if (at == 0.0 && load < range.high) {  // where the slope is not the same on both sides
      trial.slope = std::max(range.low - load, 0.0);
    }
    return trial;
  };
  Trial best = try_price(price, trials == 1);
  Trial last = best;
  Trial falling{.price = -std::numeric_limits<double>::infinity(), .bound = 0.0, .slope = 0.0};
  Trial rising{.price = std::numeric_limits<double>::infinity(), .bound = 0.0, .slope = 0.0};
  for (int trial = 1; trial < trials && last.slope != 0.0; ++trial) {
    (last.slope < 0.0 ? falling : rising) = last;
    double next = 0.0;
    if (std::isfinite(falling.price) == std::isfinite(rising.price)) {  // where the tangents meet
      next = (falling.bound - rising.bound + rising.slope * rising.price -
              falling.slope * falling.price) /
             (rising.slope - falling.slope);
    } else if (last.price == 0.0) {
      next = std::copysign(scale(values, loads), -last.slope);
    } else {
      next = last.price * ((last.slope < 0.0) == (last.price > 0.0) ? 2.0 : 0.5);
    }
    if (!std::isfinite(next) || next == last.price) {
      break;
    }
    last = try_price(next, trial + 1 == trials);
    if (last.bound < best.bound) {
      best = last;
    }
  }
  price = best.price;
  return best.bound;
}

}  // namespace neuroshard
