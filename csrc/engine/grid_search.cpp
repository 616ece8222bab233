#include "grid_search.hpp"

#include <algorithm>
#include <numeric>

namespace neuroshard {

bool placed_before(const ShardCatalog& catalog, std::span<const ShardCatalog::Kind> shards, int a,
                   int b) {
  const float cost_a = catalog.single_cost(shards[static_cast<std::size_t>(a)]);
  const float cost_b = catalog.single_cost(shards[static_cast<std::size_t>(b)]);
  return cost_a != cost_b ? cost_a > cost_b : a > b;
}

std::vector<int> placement_order(const ShardCatalog& catalog,
                                 std::span<const ShardCatalog::Kind> shards) {
  std::vector<int> order(shards.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int a, int b) { return placed_before(catalog, shards, a, b); });
  return order;
}

GridSearch::GridSearch(const CostNetworks& networks, const Problem& problem,
                       const ShardCatalog& catalog, int grid_steps, Interrupt& interrupt)
    : grid_steps_(grid_steps),
      mean_output_dim_(problem.total_output_dim() / problem.devices()),
      pass_(networks, problem, catalog, interrupt),
      plan_cost_(networks, problem.devices()) {}

GridSearch::Result GridSearch::best(std::span<const ShardCatalog::Kind> shards_in_order) {
  Result best;
  for (int step = 0; step < grid_steps_; ++step) {
    const double limit = output_dim_limit(step);
    if (step > 0 && pass_.same_under(limit)) {
      continue;  // the plan of the step before, which was considered
    }
    const bool complete = step == 0 ? pass_.run(shards_in_order, limit) : pass_.rerun(limit);
    if (!complete) {
      continue;
    }
    const double cost = plan_cost_.evaluate(pass_.device_costs(), pass_.output_dims());
    if (cost < best.cost) {
      best.cost = cost;
      best.devices.assign(pass_.devices().begin(), pass_.devices().end());
    }
  }
  return best;
}

double GridSearch::output_dim_limit(int step) const {
  const double factor = grid_steps_ == 1 ? 1.0 : 1.0 + step * (0.5 / (grid_steps_ - 1));
  return factor * mean_output_dim_;
}

}  // namespace neuroshard
