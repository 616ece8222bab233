#include "plan_cost.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "interrupt.hpp"
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

double PlanCost::evaluate(std::span<const float> compute, std::span<const double> output_dims) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr auto kLargestFloat = static_cast<double>(std::numeric_limits<float>::max());
  const std::size_t devices = output_dims.size();
  std::transform(output_dims.begin(), output_dims.end(), input_.begin(),
                 [](double dim) { return static_cast<float>(dim); });
  const std::span<const float> backward =
      networks_.backward.evaluate(std::span(input_).first(devices), workspace_);
  std::copy(backward.begin(), backward.end(), backward_.begin());

  for (std::size_t device = 0; device < devices; ++device) {
    busy_[device] = static_cast<double>(compute[device]) + static_cast<double>(backward_[device]);
  }
  const double first_start = *std::min_element(busy_.begin(), busy_.end());
  for (std::size_t device = 0; device < devices; ++device) {
    const double start = busy_[device] - first_start;
    if (!(start <= kLargestFloat)) {  // too large for the forward network, or not a number
      return kInfinity;
    }
    input_[devices + device] = static_cast<float>(start);
  }
  const std::span<const float> forward = networks_.forward.evaluate(input_, workspace_);
  std::copy(forward.begin(), forward.end(), forward_.begin());

  double cost = -kInfinity;
  for (std::size_t device = 0; device < devices; ++device) {
    const double total = busy_[device] + static_cast<double>(forward_[device]);
    if (!std::isfinite(total)) {
      return kInfinity;
    }
    cost = std::max(cost, total);
  }
  return cost;
}

Plan evaluate_plan(const CostNetworks& networks, const Problem& problem,
                   std::vector<std::int64_t> column_splits, Placement placement,
                   Interrupt& interrupt) {
  ShardCatalog catalog(networks, problem, 1, interrupt);
  return evaluate_plan(networks, problem, catalog, std::move(column_splits), std::move(placement),
                       interrupt);
}

Plan evaluate_plan(const CostNetworks& networks, const Problem& problem, ShardCatalog& catalog,
                   std::vector<std::int64_t> column_splits, Placement placement,
                   Interrupt& interrupt) {
  const std::vector<Shard> shards = split_shards(problem, column_splits);
  check_placement(placement, problem.devices(), shards.size());
  PlanCost plan_cost(networks, problem.devices());
  std::vector<ShardCatalog::Kind> kinds;
  for (const Shard& shard : shards) {
    interrupt.check();
    ShardCatalog::Kind kind = shard.table;
    for (std::int64_t width = problem.table_width(shard.table); width > shard.width; width /= 2) {
      catalog.add_half(kind);
      kind = catalog.half(kind);
    }
    kinds.push_back(kind);
  }

  Plan plan;
  const SetNetwork& set = networks.set();
  SetNetwork::Workspace workspace;
  for (const std::vector<std::int64_t>& device : placement) {
    AlignedVector<float> sums(set.empty_sums().begin(), set.empty_sums().end());
    float compute = set.empty_cost();
    double output_dim_sum = 0.0;
    std::int64_t bytes = 0;
    for (const std::int64_t shard : device) {
      interrupt.check();
      const ShardCatalog::Kind kind = kinds[static_cast<std::size_t>(shard)];
      compute = set.add(sums.data(), catalog.contribution(kind), workspace);
      output_dim_sum += catalog.output_dim(kind);
      bytes = add_saturated(bytes, catalog.bytes(kind));
    }
    plan.compute.push_back(compute);
    plan.output_dim_sums.push_back(output_dim_sum);
    plan.memory_bytes.push_back(bytes);
  }
  plan.cost = plan_cost.evaluate(plan.compute, plan.output_dim_sums);
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
