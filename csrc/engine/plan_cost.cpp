#include "plan_cost.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "shards.hpp"
#include "workers.hpp"

namespace neuroshard {

namespace {

std::int64_t add_saturated(std::int64_t a, std::int64_t b) {  // neither is negative
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  return a > kMax - b ? kMax : a + b;
}

}  // namespace

PlanCost::PlanCost(const CostNetworks& networks, int devices)
    : communication_(CommunicationCosts::make(networks.communication(), devices)),
      busy_(kLanes * static_cast<std::size_t>(devices)),
      starts_(kLanes * static_cast<std::size_t>(devices)),
      forward_(kLanes * static_cast<std::size_t>(devices)),
      backward_(kLanes * static_cast<std::size_t>(devices)) {}

PerLane<double> PlanCost::evaluate(const float* compute, const float* output_dims) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr auto kLargestFloat = static_cast<double>(std::numeric_limits<float>::max());
  const std::size_t size = busy_.size();  // i / kLanes is the device, i % kLanes the lane
  communication_->backward(output_dims, backward_.data());

  PerLane<double> first_start;
  first_start.fill(kInfinity);
  for (std::size_t i = 0; i < size; ++i) {
    busy_[i] = static_cast<double>(compute[i]) + static_cast<double>(backward_[i]);
    first_start[i % kLanes] = std::min(first_start[i % kLanes], busy_[i]);
  }
  PerLane<double> cost;
  cost.fill(-kInfinity);
  for (std::size_t i = 0; i < size; ++i) {
    const double start = busy_[i] - first_start[i % kLanes];
    if (!(start <= kLargestFloat)) {  // too large for the forward network, or not a number
      cost[i % kLanes] = kInfinity;
    }
    starts_[i] = static_cast<float>(start <= kLargestFloat ? start : 0.0);
  }
  communication_->forward(output_dims, starts_.data(), forward_.data());
  for (std::size_t i = 0; i < size; ++i) {
    const double total = busy_[i] + static_cast<double>(forward_[i]);
    cost[i % kLanes] = std::isfinite(total) ? std::max(cost[i % kLanes], total) : kInfinity;
  }
  return cost;
}

Plan evaluate_plan(const CostNetworks& networks, const Problem& problem,
                   std::vector<std::int64_t> column_splits, Placement placement,
                   Interrupt& interrupt) {
  Workers workers(1, interrupt);
  ShardCatalog catalog(networks, problem, workers, interrupt);
  return evaluate_plan(networks, problem, catalog, std::move(column_splits), std::move(placement),
                       interrupt);
}

Plan evaluate_plan(const CostNetworks& networks, const Problem& problem, ShardCatalog& catalog,
                   std::vector<std::int64_t> column_splits, Placement placement,
                   Interrupt& interrupt) {
  const std::vector<Shard> shards = split_shards(problem, column_splits);
  check_placement(placement, problem.devices(), shards.size());
  std::vector<ShardCatalog::Kind> kinds;
  for (const Shard& shard : shards) {
    interrupt.check();
    ShardCatalog::Kind kind = shard.table;
    for (std::int64_t width = problem.table_width(shard.table); width > shard.width; width /= 2) {
      catalog.add_halves({&kind, 1});
      kind = catalog.half(kind);
    }
    kinds.push_back(kind);
  }

  Plan plan;
  const SetNetwork& set = networks.set();
  SetNetwork::Workspace workspace;
  std::vector<float> compute_lanes(placement.size() * kLanes);
  std::vector<float> output_dim_lanes(placement.size() * kLanes);
  AlignedVector<float> sums(set.sums_size());
  // Only the first lane is used.
  AlignedVector<float> unused(set.sums_size());
  PerLane<float*> sums_of;
  sums_of.fill(unused.data());
  sums_of[0] = sums.data();
  PerLane<const float*> sums_before;
  std::copy(sums_of.begin(), sums_of.end(), sums_before.begin());
  for (std::size_t device = 0; device < placement.size(); ++device) {
    std::copy(set.empty_sums().begin(), set.empty_sums().end(), sums.begin());
    PerLane<float> compute{set.empty_cost()};
    double output_dim_sum = 0.0;
    std::int64_t bytes = 0;
    for (const std::int64_t shard : placement[device]) {
      interrupt.check();
      const ShardCatalog::Kind kind = kinds[static_cast<std::size_t>(shard)];
      PerLane<const float*> contributions;
      contributions.fill(catalog.contribution(kind));
      set.add(sums_before, contributions, sums_of, compute, workspace);
      output_dim_sum += catalog.output_dim(kind);
      bytes = add_saturated(bytes, catalog.bytes(kind));
    }
    compute_lanes[device * kLanes] = compute[0];
    output_dim_lanes[device * kLanes] = static_cast<float>(output_dim_sum);
    plan.compute.push_back(compute[0]);
    plan.output_dim_sums.push_back(output_dim_sum);
    plan.memory_bytes.push_back(bytes);
  }
  PlanCost plan_cost(networks, problem.devices());
  plan.cost = plan_cost.evaluate(compute_lanes.data(), output_dim_lanes.data())[0];
  if (!std::isfinite(plan.cost)) {
    throw std::invalid_argument("the cost networks give no finite cost for this plan");
  }
  for (std::size_t device = 0; device < placement.size(); ++device) {
    plan.forward.push_back(plan_cost.forward()[device * kLanes]);
    plan.backward.push_back(plan_cost.backward()[device * kLanes]);
  }
  plan.column_splits = std::move(column_splits);
  plan.placement = std::move(placement);
  return plan;
}

}  // namespace neuroshard
