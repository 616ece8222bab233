#include "grid_search.hpp"

#include <algorithm>
#include <limits>
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
    : passes_(networks, problem, catalog, interrupt), plan_cost_(networks, problem.devices()) {
  const double mean_output_dim = problem.total_output_dim() / problem.devices();
  for (int step = 0; step < grid_steps; ++step) {
    const double factor = grid_steps == 1 ? 1.0 : 1.0 + step * (0.5 / (grid_steps - 1));
    output_dim_limits_.push_back(factor * mean_output_dim);
  }
}

void GridSearch::evaluate(std::span<const Trial> trials, double* costs) {
  run(trials);
  const PerLane<double> of_lanes =
      plan_cost_.evaluate(passes_.device_costs(), passes_.output_dims());
  for (std::size_t lane = 0; lane < trials.size(); ++lane) {
    costs[lane] = passes_.complete(lane) ? of_lanes[lane] : std::numeric_limits<double>::infinity();
  }
}

std::vector<int> GridSearch::devices(const Trial& trial) {
  run(std::span(&trial, 1));
  return passes_.devices(0);
}

void GridSearch::run(std::span<const Trial> trials) {
  std::vector<GreedyPasses::Pass> passes;
  for (const Trial& trial : trials) {
    passes.push_back({trial.shards, output_dim_limits_[trial.step]});
  }
  passes_.run(passes);
}

}  // namespace neuroshard
