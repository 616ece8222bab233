#include "plan_cost.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "shards.hpp"

namespace neuroshard {

namespace {

void check_placement(const Placement& placement, int devices, std::size_t shards) {
  if (!std::cmp_equal(placement.size(), devices)) {
    throw std::invalid_argument("placement must have one list for each of the " +
                                std::to_string(devices) + " devices, it has " +
                                std::to_string(placement.size()));
  }
  std::vector<bool> placed(shards, false);
  for (std::size_t device = 0; device < placement.size(); ++device) {
    const auto refuse = [&](std::int64_t shard, const std::string& reason) {
      throw std::invalid_argument("placement[" + std::to_string(device) + "]: shard " +
                                  std::to_string(shard) + reason);
    };
    for (const std::int64_t shard : placement[device]) {
      if (shard < 0 || std::cmp_greater_equal(shard, shards)) {
        refuse(shard, " does not exist, there are " + std::to_string(shards));
      }
      if (placed[static_cast<std::size_t>(shard)]) {
        refuse(shard, " is placed twice");
      }
      placed[static_cast<std::size_t>(shard)] = true;
    }
  }
  const auto missing = std::find(placed.begin(), placed.end(), false);
  if (missing != placed.end()) {
    throw std::invalid_argument("placement: shard " + std::to_string(missing - placed.begin()) +
                                " is on no device");
  }
}

std::int64_t add_saturated(std::int64_t a, std::int64_t b) {  // neither is negative
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  return a > kMax - b ? kMax : a + b;
}

}  // namespace

PlanCost::PlanCost(const CostNetworks& networks, int devices)
    : networks_(networks.communication(devices)),
      input_(2 * static_cast<std::size_t>(devices)),
      busy_(static_cast<std::size_t>(devices)),
      forward_(static_cast<std::size_t>(devices)),
      backward_(static_cast<std::size_t>(devices)) {}

double PlanCost::evaluate(std::span<const float> compute, std::span<const double> dims) {
  const std::size_t devices = dims.size();
  std::transform(dims.begin(), dims.end(), input_.begin(),
                 [](double dim) { return static_cast<float>(dim); });
  const std::span<const float> backward =
      networks_.backward.evaluate(std::span(input_).first(devices), workspace_);
  std::copy(backward.begin(), backward.end(), backward_.begin());

  for (std::size_t device = 0; device < devices; ++device) {
    busy_[device] = static_cast<double>(compute[device]) + static_cast<double>(backward_[device]);
  }
  const double first_start = *std::min_element(busy_.begin(), busy_.end());
  for (std::size_t device = 0; device < devices; ++device) {
    input_[devices + device] = static_cast<float>(busy_[device] - first_start);
  }
  const std::span<const float> forward = networks_.forward.evaluate(input_, workspace_);
  std::copy(forward.begin(), forward.end(), forward_.begin());

  double cost = -std::numeric_limits<double>::infinity();
  for (std::size_t device = 0; device < devices; ++device) {
    const double total = busy_[device] + static_cast<double>(forward_[device]);
    if (!std::isfinite(total)) {
      return std::numeric_limits<double>::infinity();
    }
    cost = std::max(cost, total);
  }
  return cost;
}

Plan evaluate_plan(const CostNetworks& networks, const Problem& problem,
                   std::vector<std::int64_t> column_splits, Placement placement) {
  const std::vector<Shard> shards = split_shards(problem, column_splits);
  check_placement(placement, problem.devices(), shards.size());
  PlanCost plan_cost(networks, problem.devices());
  Interrupt never;
  ShardCatalog catalog(networks, problem, 1, never);
  std::vector<ShardCatalog::Kind> kinds;
  for (const Shard& shard : shards) {
    ShardCatalog::Kind kind = shard.table;
    for (std::int64_t width = problem.table_dim(shard.table); width > shard.width; width /= 2) {
      catalog.add_half(kind);
      kind = catalog.half(kind);
    }
    kinds.push_back(kind);
  }

  Plan plan;
  Network::Workspace workspace;
  for (const std::vector<std::int64_t>& device : placement) {
    std::vector<float> encoding_sum(catalog.encoding_size(), 0.0F);
    double dim_sum = 0.0;
    std::int64_t bytes = 0;
    for (const std::int64_t shard : device) {
      const ShardCatalog::Kind kind = kinds[static_cast<std::size_t>(shard)];
      const std::span<const float> encoding = catalog.encoding(kind);
      std::transform(encoding_sum.begin(), encoding_sum.end(), encoding.begin(),
                     encoding_sum.begin(), std::plus<>());
      dim_sum += catalog.dim(kind);
      bytes = add_saturated(bytes, catalog.bytes(kind));
    }
    plan.compute.push_back(networks.compute_cost(encoding_sum, workspace));
    plan.dim_sums.push_back(dim_sum);
    plan.memory_bytes.push_back(bytes);
  }
  plan.cost = plan_cost.evaluate(plan.compute, plan.dim_sums);
  if (!std::isfinite(plan.cost)) {
    throw std::invalid_argument("the cost networks give no finite cost for this plan");
  }
  plan.forward.assign(plan_cost.forward().begin(), plan_cost.forward().end());
  plan.backward.assign(plan_cost.backward().begin(), plan_cost.backward().end());
  plan.column_splits = std::move(column_splits);
  plan.placement = std::move(placement);
  return plan;
}

}  // namespace neuroshard
