#pragma once

#include <cstddef>
#include <vector>

#include "aligned.hpp"
#include "cost_networks.hpp"
#include "kernels/kernels.hpp"
#include "plan.hpp"
#include "plan_cost.hpp"

namespace neuroshard {

/// What the automatic search minimises: the cost of a plan, whichever device has which number.
///
/// Communication networks for one number of devices know the devices by their numbers, which is an
/// error of theirs: with these it is the mean cost over orders of the devices, all orders of up to
/// kMostOrdered devices, and a fixed sample for more. The sample begins from the devices in the
/// order of what they send and compute, so that it does not depend on their numbers either.
class PlanObjective {
 public:
  PlanObjective(const CostNetworks& networks, int devices);

  /// Of the first `count` of kLanes plans, as PlanCost::evaluate takes them, ms.
  PerLane<double> evaluate(const float* compute, const float* output_dims, std::size_t count);

  /// Of a plan that was evaluated for these devices, ms.
  double of(const Plan& plan);

  /// Costs of the devices in kLanes plans, numbered as they are.
  const PlanCost& of_plan(const float* compute, const float* output_dims) {
    plan_cost_.evaluate(compute, output_dims);
    return plan_cost_;
  }

  /// Whether it is a mean over orders of the devices.
  bool is_mean() const { return !orders_.empty(); }

  /// How much longer it takes than the cost of the plans as they are numbered.
  double calls_per_plan() const {
    return is_mean() ? static_cast<double>(round_up(orders_.size(), kLanes)) : 1.0;
  }

 private:
  static constexpr std::size_t kMostOrdered = 4;
  static constexpr std::size_t kSample = 32;
  void make_orders();
  double mean_over_orders(const float* compute, const float* output_dims, std::size_t lane);

  const std::size_t devices_;
  PlanCost plan_cost_;
  std::vector<std::vector<std::size_t>> orders_;  // empty where one is as good as the others
  std::vector<std::size_t> sorted_;               // devices by what they send and compute
  AlignedVector<float> compute_;                  // [devices][kLanes]
  AlignedVector<float> output_dims_;              // [devices][kLanes]
};

}  // namespace neuroshard
