#include "grid_search.hpp"

#include <algorithm>
#include <utility>

namespace neuroshard {

namespace {

constexpr std::size_t kPlacementsPerCheck = 256;  // of the interrupt

/// Limits on the output dim of a device, by step.
std::vector<double> grid(const Problem& problem, int steps) {
  const double mean = problem.total_output_dim() / problem.devices();
  std::vector<double> limits;
  for (int step = 0; step < steps; ++step) {
    const double factor = steps == 1 ? 1.0 : 1.0 + step * (0.5 / (steps - 1));
    limits.push_back(factor * mean);
  }
  return limits;
}

}  // namespace

GridSearch::GridSearch(const CostNetworks& networks, const Problem& problem,
                       const ShardCatalog& catalog, int grid_steps, Interrupt& interrupt,
                       PassObserver observer)
    : steps_(static_cast<std::size_t>(grid_steps)),
      interrupt_(interrupt),
      observer_(std::move(observer)),
      passes_(networks, problem, catalog, grid(problem, grid_steps)),
      compute_(static_cast<std::size_t>(problem.devices()) * kLanes),
      output_dims_(static_cast<std::size_t>(problem.devices()) * kLanes),
      plan_cost_(networks, problem.devices()) {}

void GridSearch::run(std::span<const Shards> tasks, std::atomic<std::size_t>& next,
                     std::size_t fair_share, std::span<Result> results) {
  std::size_t begun = 0;
  const auto begin = [&](std::size_t lane) {
    // Only reads once all are taken: idle lanes ask often.
    const std::size_t task = next < tasks.size() ? next++ : tasks.size();
    if (task >= tasks.size()) {
      return false;
    }
    ++begun;
    trials_[lane] = {.task = task, .step = steps_ - 1, .last = 0, .under_way = true};
    passes_.start(lane, tasks[task], steps_ - 1);
    return true;
  };
  const auto find_work = [&](std::size_t lane) {
    trials_[lane].under_way = (begun < fair_share && begin(lane)) || share(lane) || begin(lane);
    return trials_[lane].under_way;
  };
  std::size_t busy = 0;  // lanes
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    busy += find_work(lane) ? 1 : 0;
  }
  for (std::size_t placements = 0; busy > 0; ++placements) {
    if (placements % kPlacementsPerCheck == 0) {
      interrupt_.check();
    }
    passes_.place_next();
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      if (trials_[lane].under_way && !passes_.running(lane)) {
        report(lane);
        if (trials_[lane].step == steps_ - 1) {
          results[trials_[lane].task].placed = passes_.devices(lane).size();
        }
        keep_plan(lane, results);
        busy -= lower_limit(lane) || find_work(lane) ? 0 : 1;
      }
    }
  }
  if (!plans_.empty()) {
    evaluate_plans(results);
  }
}

void GridSearch::keep_plan(std::size_t lane, std::span<Result> results) {
  Trial& trial = trials_[lane];
  // Under limits down to that which the pass came to, it would have been the same.
  trial.step = std::max(passes_.lowest_limit(lane), trial.last);
  if (passes_.complete(lane)) {
    passes_.device_loads(lane, compute_.data() + plans_.size(),
                         output_dims_.data() + plans_.size());
    plans_.push_back(trial);
    if (plans_.size() == kLanes) {
      evaluate_plans(results);
    }
  }
}

bool GridSearch::lower_limit(std::size_t lane) {
  Trial& trial = trials_[lane];
  if (trial.step == trial.last) {
    return false;
  }
  --trial.step;
  passes_.start_from(lane, lane, trial.step);
  return true;
}

bool GridSearch::share(std::size_t lane) {
  const auto left = [](const Trial& trial) { return trial.step - trial.last; };
  Trial* const most =
      std::max_element(trials_.begin(), trials_.end(),
                       [&](const Trial& a, const Trial& b) { return left(a) < left(b); });
  if (left(*most) == 0) {
    return false;
  }
  const std::size_t step = most->last + (left(*most) - 1) / 2;
  trials_[lane] = {.task = most->task, .step = step, .last = most->last, .under_way = true};
  most->last = step + 1;
  passes_.start_from(static_cast<std::size_t>(most - trials_.begin()), lane, step);
  return true;
}

void GridSearch::evaluate_plans(std::span<Result> results) {
  const PerLane<double> costs = plan_cost_.evaluate(compute_.data(), output_dims_.data());
  for (std::size_t plan = 0; plan < plans_.size(); ++plan) {
    const Trial& trial = plans_[plan];
    Result& result = results[trial.task];
    if (costs[plan] < result.cost || (costs[plan] == result.cost && trial.step < result.step)) {
      result.cost = costs[plan];
      result.step = trial.step;
    }
  }
  plans_.clear();
}

std::vector<int> GridSearch::devices(Shards shards, std::size_t step, Interrupt& interrupt) {
  passes_.start(0, shards, step);
  for (std::size_t placements = 0; passes_.running(0); ++placements) {
    if (placements % kPlacementsPerCheck == 0) {
      interrupt.check();
    }
    passes_.place_next();
  }
  report(0);
  const std::span<const std::int32_t> devices = passes_.devices(0);
  return {devices.begin(), devices.end()};
}

void GridSearch::report(std::size_t lane) {
  if (observer_) {
    observer_({.shards = passes_.shards(lane),
               .devices = passes_.devices(lane),
               .taken_over = passes_.taken_over(lane)});
  }
}

}  // namespace neuroshard
