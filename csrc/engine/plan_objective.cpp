#include "plan_objective.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <variant>

#include "spread.hpp"

namespace neuroshard {

PlanObjective::PlanObjective(const CostNetworks& networks, int devices)
    : devices_(static_cast<std::size_t>(devices)), plan_cost_(networks, devices) {
  if (std::holds_alternative<PerCountCommunication>(networks.communication())) {
    make_orders();
    sorted_.resize(devices_);
    compute_.resize(devices_ * kLanes);
    output_dims_.resize(devices_ * kLanes);
  }
}

void PlanObjective::make_orders() {
  std::vector<std::size_t> order(devices_);
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (devices_ <= kMostOrdered) {
    do {
      orders_.push_back(order);
    } while (std::ranges::next_permutation(order).found);
    return;
  }
  std::uint64_t random = devices_;
  for (std::size_t sample = 0; sample < kSample; ++sample) {
    for (std::size_t i = devices_; i > 1; --i) {
      random = spread(random);
      std::swap(order[i - 1], order[random % i]);
    }
    orders_.push_back(order);
  }
}

PerLane<double> PlanObjective::evaluate(const float* compute, const float* output_dims,
                                        std::size_t count) {
  if (!is_mean()) {
    return plan_cost_.evaluate(compute, output_dims);
  }
  PerLane<double> costs{};
  for (std::size_t lane = 0; lane < count; ++lane) {
    costs[lane] = mean_over_orders(compute, output_dims, lane);
  }
  return costs;
}

double PlanObjective::of(const Plan& plan) {
  AlignedVector<float> compute(devices_ * kLanes);
  AlignedVector<float> output_dims(devices_ * kLanes);
  for (std::size_t device = 0; device < devices_; ++device) {
    compute[device * kLanes] = plan.compute[device];
    output_dims[device * kLanes] = static_cast<float>(plan.output_dim_sums[device]);
  }
  return evaluate(compute.data(), output_dims.data(), 1)[0];
}

double PlanObjective::mean_over_orders(const float* compute, const float* output_dims,
                                       std::size_t lane) {
  std::iota(sorted_.begin(), sorted_.end(), std::size_t{0});
  const auto load = [&](std::size_t device) {
    return std::tuple(output_dims[device * kLanes + lane], compute[device * kLanes + lane]);
  };
  // Devices that are equal in both are the same to the networks.
  std::ranges::sort(sorted_, {}, load);
  double sum = 0.0;
  for (std::size_t first = 0; first < orders_.size(); first += kLanes) {
    const std::size_t count = std::min(kLanes, orders_.size() - first);
    for (std::size_t device = 0; device < devices_; ++device) {
      for (std::size_t i = 0; i < kLanes; ++i) {
        const std::vector<std::size_t>& order = orders_[first + std::min(i, count - 1)];
        const std::size_t from = sorted_[order[device]] * kLanes + lane;
        compute_[device * kLanes + i] = compute[from];
        output_dims_[device * kLanes + i] = output_dims[from];
      }
    }
    const PerLane<double> costs = plan_cost_.evaluate(compute_.data(), output_dims_.data());
    sum = std::accumulate(costs.begin(), costs.begin() + static_cast<std::ptrdiff_t>(count), sum);
  }
  return sum / static_cast<double>(orders_.size());
}

}  // namespace neuroshard
