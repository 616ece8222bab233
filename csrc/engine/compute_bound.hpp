#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <vector>

#include "cost_networks.hpp"
#include "interrupt.hpp"
#include "rounding.hpp"
#include "shard_sums.hpp"

namespace neuroshard {

/// Bounds of what devices compute, over all plans in which none of them computes for so long.
///
/// The sums of a device, z, are those of an empty one and the contributions of its shards, and its
/// cost is f(z) = bias + sum of w * max(z, 0) over the neurons. Where z lies in some ranges, f(z)
/// is at least a line g z + h. Under a line every shard has a load, g times its contributions: the
/// mean cost of the devices is at least the line at the mean of their sums, which the loads of all
/// shards give wherever these are. And the loads on a device that costs less than the cap have a
/// sum below the cap's: this bounds its sums further, by Lagrange's bound (ShardSums::most_within),
/// and better ranges give a better line.
///
/// Costs are those that the engine computes in fp32; the bounds allow for their rounding.
class ComputeBound {
 public:
  /// Whatever devices compute. `networks` has a set network of two layers. Keeps references.
  ComputeBound(const CostNetworks& networks, const ShardSums& sums, int devices,
               Interrupt& interrupt);

  /// From now on for plans of which every device computes for less than `cap` ms, which must not be
  /// higher than before. False where there is no such plan.
  bool lower_cap(double cap);

  /// What the devices compute in the mean, and each of them, at least, ms.
  double mean() const { return mean_ - rounding_; }
  double least() const { return least_ - rounding_; }

  /// The most that costs of two devices of a plan differ, whatever the cap was.
  double most_apart() const { return most_apart_; }

 private:
  struct Line {
    std::vector<double> slope;
    double constant = 0.0;
  };
  /// Prices, and the sums over shards that they give a bound by.
  struct Priced {
    double price = 0.0;
    double sum = 0.0;
  };
  static constexpr std::size_t kPrices = 8;

  void find_widest_ranges();
  void set_mean_sums();
  bool tighten(int trials);
  bool split_what_is_too_dear();
  double alone(std::size_t kind);
  void place_concave_neurons();
  void set_rounding();

  Line line(const std::vector<Range>& ranges, const std::vector<double>& at) const;
  bool use(const Line& line);
  std::vector<double> loads_of(const Line& line) const;
  double most_negative(const std::vector<double>& loads);
  void copy_contributions(std::size_t neuron, double sign);
  std::array<double, kPrices> prices() const;
  void set_prices();
  double most_of(const std::vector<Priced>& priced, std::size_t neuron, Range loads) const;
  double empty(const Line& line) const;
  bool is_possible() const { return !(mean_ >= cap_ + rounding_); }
  double room() const { return cap_ + rounding_ - empty(line_); }

  Interrupt* interrupt_;
  ShardSums sums_;
  double devices_;
  std::size_t neurons_;
  std::vector<double> bias_;     // of the sums
  std::vector<double> weights_;  // w
  double constant_;              // the bias of the cost
  std::vector<double> rounded_;  // of each kind, what rounding is in proportion to
  double rounded_empty_ = 0.0;

  double cap_;
  double rounding_;
  double most_apart_ = 0.0;
  double mean_;
  double least_;
  double line_mean_;
  std::vector<Range> ranges_;                    // of the sums of any device
  std::vector<double> mean_sums_;                // of the unsplit tables
  Line line_;                                    // that the loads are of
  std::vector<double> loads_;                    // [kinds]
  double total_load_ = 0.0;                      // of all shards, at least
  double least_load_ = 0.0;                      // of a device
  std::vector<double> up_, down_;                // [neurons] the best prices
  std::vector<Priced> priced_up_, priced_down_;  // [neurons][kPrices]
  std::vector<double> values_;                   // [kinds] to work with
};

}  // namespace neuroshard
