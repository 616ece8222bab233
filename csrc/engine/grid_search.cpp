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
    : pass_(networks, problem, catalog, interrupt), plan_cost_(networks, problem.devices()) {
  const double mean_output_dim = problem.total_output_dim() / problem.devices();
  for (int step = 0; step < grid_steps; ++step) {
    const double factor = grid_steps == 1 ? 1.0 : 1.0 + step * (0.5 / (grid_steps - 1));
    output_dim_limits_.push_back(factor * mean_output_dim);
  }
}

GridSearch::Result GridSearch::best(std::span<const ShardCatalog::Kind> shards_in_order) {
  Result best;
  pass_.start(shards_in_order, output_dim_limits_);
  do {
    if (!pass_.complete()) {
      continue;
    }
    const double cost = plan_cost_.evaluate(pass_.device_costs(), pass_.output_dims());
    if (cost < best.cost) {
      best.cost = cost;
      best.devices.assign(pass_.devices().begin(), pass_.devices().end());
    }
  } while (pass_.next());
  return best;
}

}  // namespace neuroshard
