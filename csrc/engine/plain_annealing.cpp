#include "plain_annealing.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "aligned.hpp"
#include "device_compute.hpp"
#include "plan_objective.hpp"
#include "random.hpp"
#include "shard_catalog.hpp"
#include "shards.hpp"
#include "workers.hpp"

namespace neuroshard {

namespace {

using Kind = ShardCatalog::Kind;

// Shares of the cost that a change may add with a chance of 1/e, at the beginning and at the end.
constexpr double kHot = 2e-2;
constexpr double kCold = 1e-5;

/// A plan that is changed step by step, and what its devices hold.
struct Chain {
  SplitPlan plan;
  std::vector<std::vector<Kind>> held;  // by each device
  double cost = 0.0;
};

class PlainAnnealing {
 public:
  PlainAnnealing(const CostNetworks& networks, const Problem& problem, int max_splits,
                 std::uint64_t seed, Interrupt& interrupt)
      : networks_(networks),
        problem_(problem),
        max_splits_(max_splits),
        interrupt_(interrupt),
        workers_(1, interrupt),
        catalog_(networks, problem, workers_, interrupt),
        objective_(networks, problem.devices()),
        devices_(static_cast<std::size_t>(problem.devices())),
        random_(seed),
        compute_(devices_ * kLanes),
        output_dims_(devices_ * kLanes) {}

  Annealed run(const SplitsAndPlacement& start, const std::function<double()>& progress) {
    const SplitPlan first = to_split_plan(problem_, catalog_, start.column_splits, start.placement);
    std::array<Chain, kLanes> chains;
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      chains[lane].plan = first;
      fill(chains[lane], lane);
    }
    PerLane<double> costs = evaluate();
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      chains[lane].cost = costs[lane];
    }
    SplitPlan best = first;
    double best_cost = costs[0];
    while (true) {
      const double done = progress();
      if (done >= 1.0) {
        break;
      }
      interrupt_.check();
      std::array<Chain, kLanes> changed = chains;
      std::array<bool, kLanes> allowed{};
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        allowed[lane] = change(changed[lane].plan) && fill(changed[lane], lane);
        if (!allowed[lane]) {
          fill(chains[lane], lane);
        }
      }
      costs = evaluate();
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        const double heat = std::abs(chains[lane].cost) * kHot * std::pow(kCold / kHot, done);
        const double more = costs[lane] - chains[lane].cost;
        if (allowed[lane] && (more <= 0.0 || random_.uniform() < std::exp(-more / heat))) {
          changed[lane].cost = costs[lane];
          chains[lane] = std::move(changed[lane]);
          if (costs[lane] < best_cost) {
            best_cost = costs[lane];
            best = chains[lane].plan;
          }
        }
      }
    }
    return {.plan = from_split_plan(problem_, catalog_, best),
            .objective = best_cost,
            .evaluations = evaluations_};
  }

 private:
  PerLane<double> evaluate() {
    evaluations_ += static_cast<std::int64_t>(kLanes);
    return objective_.evaluate(compute_.data(), output_dims_.data(), kLanes);
  }

  /// Works out what the devices of a chain hold and compute; whether they keep their memory.
  bool fill(Chain& chain, std::size_t lane) {
    chain.held.assign(devices_, {});
    for (const auto& [kind, device, origin] : chain.plan.shards) {
      chain.held[static_cast<std::size_t>(device)].push_back(kind);
    }
    bool fits = true;
    for (std::size_t device = 0; device < devices_; ++device) {
      double output_dims = 0.0;
      std::int64_t bytes = 0;
      for (const Kind kind : chain.held[device]) {
        output_dims += catalog_.output_dim(kind);
        bytes += catalog_.bytes(kind);
      }
      fits = fits && bytes <= problem_.memory_bytes(static_cast<int>(device));
      compute_[device * kLanes + lane] =
          device_compute(networks_.set(), catalog_, chain.held[device]).cost;
      output_dims_[device * kLanes + lane] = static_cast<float>(output_dims);
    }
    return fits;
  }

  /// Changes a plan at random; false where what was drawn cannot be done.
  bool change(SplitPlan& plan) {
    PlacedShard& shard = plan.shards[random_.below(plan.shards.size())];
    if (problem_.pinned(catalog_.table(shard.kind)) != Problem::kAnyDevice) {
      return false;
    }
    switch (random_.below(4)) {
      case 0:
        shard.device = static_cast<int>(random_.below(devices_));
        return true;
      case 1: {
        PlacedShard& other = plan.shards[random_.below(plan.shards.size())];
        if (problem_.pinned(catalog_.table(other.kind)) != Problem::kAnyDevice) {
          return false;
        }
        std::swap(shard.device, other.device);
        return true;
      }
      case 2:
        return split(plan, shard);
      default:
        return merge(plan, shard);
    }
  }

  bool split(SplitPlan& plan, PlacedShard& shard) {
    const Kind kind = shard.kind;
    if (catalog_.pieces(kind) == 1 || plan.splits >= max_splits_) {
      return false;
    }
    catalog_.add_pieces({&kind, 1});
    shard.kind = catalog_.piece(kind);
    for (std::int64_t piece = 1; piece < catalog_.pieces(kind); ++piece) {
      plan.shards.push_back(
          {.kind = catalog_.piece(kind), .device = static_cast<int>(random_.below(devices_))});
    }
    ++plan.splits;
    return true;
  }

  bool merge(SplitPlan& plan, const PlacedShard& shard) {
    const Kind kind = shard.kind;
    const Kind whole = catalog_.whole(kind);
    if (whole == ShardCatalog::kNone) {
      return false;
    }
    const int device = shard.device;
    std::int64_t left = catalog_.pieces(whole);
    std::vector<PlacedShard> others;
    for (const PlacedShard& other : plan.shards) {
      if (other.kind == kind && left > 0) {
        --left;
      } else {
        others.push_back(other);
      }
    }
    if (left > 0) {
      return false;
    }
    others.push_back({.kind = whole, .device = device});
    plan.shards = std::move(others);
    --plan.splits;
    return true;
  }

  const CostNetworks& networks_;
  const Problem& problem_;
  const int max_splits_;
  Interrupt& interrupt_;
  Workers workers_;
  ShardCatalog catalog_;
  PlanObjective objective_;
  const std::size_t devices_;
  Random random_;
  std::int64_t evaluations_ = 0;
  AlignedVector<float> compute_;      // [devices][kLanes]
  AlignedVector<float> output_dims_;  // [devices][kLanes]
};

}  // namespace

Annealed plain_annealing(const CostNetworks& networks, const Problem& problem,
                         const SplitsAndPlacement& start, int max_splits, std::uint64_t seed,
                         const std::function<double()>& progress, Interrupt& interrupt) {
  check_placement(start.placement, problem.devices(),
                  split_shards(problem, start.column_splits).size());
  return PlainAnnealing(networks, problem, max_splits, seed, interrupt).run(start, progress);
}

}  // namespace neuroshard
