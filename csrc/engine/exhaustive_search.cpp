#include "exhaustive_search.hpp"

#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

#include "aligned.hpp"
#include "device_compute.hpp"
#include "plan_cost.hpp"
#include "plan_objective.hpp"
#include "shard_catalog.hpp"
#include "split_plan.hpp"
#include "workers.hpp"

namespace neuroshard {

namespace {

using Kind = ShardCatalog::Kind;

constexpr double kMostPlacements = 1e8;  // of one set of shards

class ExhaustiveSearch {
 public:
  ExhaustiveSearch(const CostNetworks& networks, const Problem& problem, int max_splits,
                   Interrupt& interrupt)
      : networks_(networks),
        problem_(problem),
        max_splits_(max_splits),
        interrupt_(interrupt),
        workers_(1, interrupt),
        catalog_(networks, problem, workers_, interrupt),
        objective_(networks, problem.devices()),
        devices_(static_cast<std::size_t>(problem.devices())),
        held_(devices_),
        bytes_(devices_),
        compute_(devices_ * kLanes),
        output_dims_(devices_ * kLanes) {}

  std::optional<BestOfAll> run() {
    split(0);
    if (!std::isfinite(best_cost_)) {
      return std::nullopt;
    }
    SplitsAndPlacement found = from_split_plan(problem_, catalog_, best_);
    Plan plan = evaluate_plan(networks_, problem_, catalog_, std::move(found.column_splits),
                              std::move(found.placement), interrupt_);
    return BestOfAll{.plan = std::move(plan), .objective = best_cost_};
  }

 private:
  /// Every set of shards of this and the tables after it.
  void split(int table) {
    if (table == problem_.tables()) {
      if (std::pow(static_cast<double>(devices_), static_cast<double>(plan_.shards.size())) >
          kMostPlacements) {
        throw std::invalid_argument("an exhaustive search is for few shards: there are " +
                                    std::to_string(plan_.shards.size()) + " on " +
                                    std::to_string(devices_) + " devices");
      }
      place(0);
      evaluate();
      return;
    }
    split(table, table, 1);
  }

  /// Of `count` shards of one kind all numbers that are not split on.
  void split(int table, Kind kind, std::int64_t count) {
    for (std::int64_t stay = count; stay >= 0; --stay) {
      const std::int64_t gone = count - stay;
      if (gone > 0 && (catalog_.pieces(kind) == 1 || plan_.splits + gone > max_splits_)) {
        break;
      }
      for (std::int64_t i = 0; i < stay; ++i) {
        plan_.shards.push_back({.kind = kind, .device = 0});
      }
      if (gone == 0) {
        split(table + 1);
      } else {
        catalog_.add_pieces({&kind, 1});
        plan_.splits += static_cast<int>(gone);
        split(table, catalog_.piece(kind), gone * catalog_.pieces(kind));
        plan_.splits -= static_cast<int>(gone);
      }
      plan_.shards.resize(plan_.shards.size() - static_cast<std::size_t>(stay));
    }
  }

  /// Every placement of this and the shards after it. Shards of a kind are all alike.
  void place(std::size_t shard) {
    if (shard == plan_.shards.size()) {
      add_plan();
      return;
    }
    PlacedShard& placed = plan_.shards[shard];
    const bool is_alike = shard > 0 && plan_.shards[shard - 1].kind == placed.kind;
    const std::int64_t pinned = problem_.pinned(catalog_.table(placed.kind));
    for (int device = is_alike ? plan_.shards[shard - 1].device : 0;
         std::cmp_less(device, devices_); ++device) {
      const auto d = static_cast<std::size_t>(device);
      if ((pinned != Problem::kAnyDevice && pinned != device) ||
          bytes_[d] + catalog_.bytes(placed.kind) > problem_.memory_bytes(device)) {
        continue;
      }
      placed.device = device;
      bytes_[d] += catalog_.bytes(placed.kind);
      held_[d].push_back(placed.kind);
      place(shard + 1);
      held_[d].pop_back();
      bytes_[d] -= catalog_.bytes(placed.kind);
    }
  }

  void add_plan() {
    interrupt_.check();
    const std::size_t lane = waiting_.size();
    for (std::size_t device = 0; device < devices_; ++device) {
      double output_dims = 0.0;
      for (const Kind kind : held_[device]) {
        output_dims += catalog_.output_dim(kind);
      }
      compute_[device * kLanes + lane] =
          device_compute(networks_.set(), catalog_, held_[device]).cost;
      output_dims_[device * kLanes + lane] = static_cast<float>(output_dims);
    }
    waiting_.push_back(plan_);
    if (waiting_.size() == kLanes) {
      evaluate();
    }
  }

  void evaluate() {
    const PerLane<double> costs =
        objective_.evaluate(compute_.data(), output_dims_.data(), waiting_.size());
    for (std::size_t lane = 0; lane < waiting_.size(); ++lane) {
      if (costs[lane] < best_cost_) {
        best_cost_ = costs[lane];
        best_ = waiting_[lane];
      }
    }
    waiting_.clear();
  }

  const CostNetworks& networks_;
  const Problem& problem_;
  const int max_splits_;
  Interrupt& interrupt_;
  Workers workers_;
  ShardCatalog catalog_;
  PlanObjective objective_;
  const std::size_t devices_;
  SplitPlan plan_;
  std::vector<std::vector<Kind>> held_;  // by each device
  std::vector<std::int64_t> bytes_;      // of each device
  std::vector<SplitPlan> waiting_;       // to be evaluated
  AlignedVector<float> compute_;         // [devices][kLanes]
  AlignedVector<float> output_dims_;     // [devices][kLanes]
  SplitPlan best_;
  double best_cost_ = std::numeric_limits<double>::infinity();
};

}  // namespace

std::optional<BestOfAll> exhaustive_search(const CostNetworks& networks, const Problem& problem,
                                           int max_splits, Interrupt& interrupt) {
  return ExhaustiveSearch(networks, problem, max_splits, interrupt).run();
}

}  // namespace neuroshard
