#include "plan_cost.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "device_compute.hpp"
#include "shards.hpp"
#include "workers.hpp"

namespace neuroshard {

namespace {

std::int64_t add_saturated(std::int64_t a, std::int64_t b) {  // neither is negative
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  return a > kMax - b ? kMax : a + b;
}

/// Costs of devices that hold shards of these kinds.
Plan evaluate_kinds(const CostNetworks& networks, const ShardCatalog& catalog,
                    const std::vector<std::vector<ShardCatalog::Kind>>& devices,
                    Interrupt& interrupt) {
  Plan plan;
  std::vector<float> compute_lanes(devices.size() * kLanes);  // only the first lane is used
  std::vector<float> output_dim_lanes(devices.size() * kLanes);
  for (std::size_t device = 0; device < devices.size(); ++device) {
    double output_dim_sum = 0.0;
    std::int64_t bytes = 0;
    for (const ShardCatalog::Kind kind : devices[device]) {
      interrupt.check();
      output_dim_sum += catalog.output_dim(kind);
      bytes = add_saturated(bytes, catalog.bytes(kind));
    }
    const float compute = device_compute(networks.set(), catalog, devices[device]).cost;
    compute_lanes[device * kLanes] = compute;
    output_dim_lanes[device * kLanes] = static_cast<float>(output_dim_sum);
    plan.compute.push_back(compute);
    plan.output_dim_sums.push_back(output_dim_sum);
    plan.memory_bytes.push_back(bytes);
  }
  PlanCost plan_cost(networks, static_cast<int>(devices.size()));
  plan.cost = plan_cost.evaluate(compute_lanes.data(), output_dim_lanes.data())[0];
  if (!std::isfinite(plan.cost)) {
    throw std::invalid_argument("the cost networks give no finite cost for this plan");
  }
  for (std::size_t device = 0; device < devices.size(); ++device) {
    plan.forward.push_back(plan_cost.forward()[device * kLanes]);
    plan.backward.push_back(plan_cost.backward()[device * kLanes]);
  }
  return plan;
}

void check_columns(const Problem& problem, const std::vector<std::vector<TableColumns>>& devices) {
  if (!std::cmp_equal(devices.size(), problem.devices())) {
    throw std::invalid_argument("shards must have one list for each of the " +
                                std::to_string(problem.devices()) + " devices, it has " +
                                std::to_string(devices.size()));
  }
  std::vector<std::int64_t> left = problem.all_tables().widths;
  for (std::size_t device = 0; device < devices.size(); ++device) {
    for (const auto [table, width] : devices[device]) {
      const auto refuse = [device](const std::string& reason) {
        throw std::invalid_argument("shards[" + std::to_string(device) + "]: " + reason);
      };
      if (table < 0 || table >= problem.tables()) {
        refuse("table " + std::to_string(table) + " does not exist, there are " +
               std::to_string(problem.tables()));
      }
      if (width <= 0 || width % kColumns != 0) {
        refuse("a width must be a positive multiple of 4, got " + std::to_string(width));
      }
      std::int64_t& columns = left[static_cast<std::size_t>(table)];
      if (width > columns) {
        refuse("the shards of table " + std::to_string(table) + " have more columns than its " +
               std::to_string(problem.table_width(table)));
      }
      columns -= width;
    }
  }
  for (int table = 0; table < problem.tables(); ++table) {
    if (const std::int64_t columns = left[static_cast<std::size_t>(table)]; columns != 0) {
      throw std::invalid_argument("shards: " + std::to_string(columns) + " columns of table " +
                                  std::to_string(table) + " are on no device");
    }
  }
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
    while (catalog.width(kind) > shard.width) {
      catalog.add_pieces({&kind, 1});
      kind = catalog.piece(kind);
    }
    kinds.push_back(kind);
  }
  std::vector<std::vector<ShardCatalog::Kind>> devices(placement.size());
  for (std::size_t device = 0; device < placement.size(); ++device) {
    for (const std::int64_t shard : placement[device]) {
      devices[device].push_back(kinds[static_cast<std::size_t>(shard)]);
    }
  }
  Plan plan = evaluate_kinds(networks, catalog, devices, interrupt);
  plan.column_splits = std::move(column_splits);
  plan.placement = std::move(placement);
  return plan;
}

Plan evaluate_shards(const CostNetworks& networks, const Problem& problem,
                     const std::vector<std::vector<TableColumns>>& devices, Interrupt& interrupt) {
  check_columns(problem, devices);
  Workers workers(1, interrupt);
  ShardCatalog catalog(networks, problem, workers, interrupt);
  std::vector<std::vector<ShardCatalog::Kind>> kinds(devices.size());
  for (std::size_t device = 0; device < devices.size(); ++device) {
    for (const auto [table, width] : devices[device]) {
      interrupt.check();
      kinds[device].push_back(width == problem.table_width(table) ? table
                                                                  : catalog.add_kind(table, width));
    }
  }
  return evaluate_kinds(networks, catalog, kinds, interrupt);
}

}  // namespace neuroshard
