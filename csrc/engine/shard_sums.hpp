#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cost_networks.hpp"
#include "problem.hpp"
#include "rounding.hpp"
#include "shard_catalog.hpp"

namespace neuroshard {

/// Bounds of sums over the shards of any plan with at most so many splits, whatever the memory of
/// the devices, and what is pinned to them, would allow of it.
///
/// Every table has a chain of kinds of shards: unsplit, its pieces, the pieces of these, and so on.
/// A plan takes every table unsplit, and each split then replaces a shard by its pieces. So if each
/// shard has a value, the sum over a plan is that of the unsplit tables and what the splits add; of
/// one link of a chain there can be no more splits than there are such shards at most. The largest
/// of what so many splits can add, each link for itself, is a bound of it.
class ShardSums {
 public:
  /// `catalog` learns the kinds of shards that it lacks.
  ShardSums(const CostNetworks& networks, const Problem& problem, ShardCatalog& catalog,
            int max_splits);

  std::size_t tables() const { return first_.size(); }
  std::size_t kinds() const { return kinds_.size(); }  // of shards; those of a table in a row
  std::size_t sums() const { return sums_; }           // outputs of the set network's first layer

  /// What shards of each kind add to one of the sums of their device.
  std::span<const float> contributions(std::size_t sum) const {
    return std::span(contributions_).subspan(sum * kinds(), kinds());
  }

  /// The kinds of a table: `first(table)` … `first(table + 1)` - 1.
  std::size_t first(std::size_t table) const { return table < tables() ? first_[table] : kinds(); }

  /// The first kind of a table that a plan may hold, and so many shards of it replace the table.
  std::size_t base(std::size_t table) const { return base_[table]; }
  double copies(std::size_t table) const { return copies_[table]; }

  /// Says that no plan holds shards of a table before this one. False: that takes too many splits.
  bool set_base(std::size_t table, std::size_t kind);

  /// The most that the sum over all shards of `values`, one for each kind, can be, or the least.
  double most(std::span<const double> values);
  double least(std::span<const double> values);

  /// The most that the sum of `values` over the shards of some devices can be, where the sum of
  /// `loads` over these lies in `range`.
  ///
  /// For every price p of load, it is at most  p * load + the sum of max(value - p * load of the
  /// shard, 0), over all shards: Lagrange's bound. It is taken for `trials` prices, and the least
  /// counts. They approach the best from `price` on, which is set to the best of them.
  double most_within(std::span<const double> values, std::span<const double> loads, Range range,
                     int trials, double& price);

  /// The sum of max(value - price * load, 0) over all shards, at most.
  double most_above(std::span<const double> values, std::span<const double> loads, double price);

 private:
  struct Gain {
    double gain;
    double count;
  };
  void insert(Gain gain);

  std::vector<ShardCatalog::Kind> kinds_;
  std::vector<double> pieces_;      // of a shard of this kind, 0 for the last of its chain
  std::vector<double> most_split_;  // shards of this kind that a plan splits at most
  std::vector<std::size_t> first_;  // kind, of each table
  std::vector<std::size_t> base_;   // of each table
  std::vector<double> copies_;      // of each table
  std::size_t sums_;
  std::vector<float> contributions_;  // [sums][kinds]
  double splits_;                     // that are left
  std::vector<double> above_;         // [kinds] to work with
  std::vector<double> gains_;         // [kinds] what a split of this kind adds
  std::vector<Gain> top_;             // the largest ones, descending
  double held_ = 0.0;                 // splits in `top_`
};

/// What a price of load costs at most within a range of it.
inline double price_of(double price, Range loads) {
  return price == 0.0 ? 0.0 : price * (price > 0.0 ? loads.high : loads.low);
}

}  // namespace neuroshard
