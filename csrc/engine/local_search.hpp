#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "aligned.hpp"
#include "cost_networks.hpp"
#include "interrupt.hpp"
#include "plan.hpp"
#include "plan_objective.hpp"
#include "problem.hpp"
#include "random.hpp"
#include "set_network.hpp"
#include "shard_catalog.hpp"
#include "split_plan.hpp"

namespace neuroshard {

/// Improves a plan by small changes: shards move to other devices, trade places, are split and put
/// together again, within the memory of the devices.
///
/// Simulated annealing: a change that makes the plan dearer is taken now and then, ever more
/// seldom. Of many changes drawn at random those that seem best, by what the changed devices would
/// compute, are evaluated in full, kLanes at once, and the best of these is the one that is taken
/// or not.
class LocalSearch {
 public:
  /// How much of its time is over, from 0 to 1, after so many evaluations of PlanObjective.
  using Progress = std::function<double(std::int64_t evaluations)>;

  /// Keeps references; `catalog` learns the kinds of shards that come up.
  LocalSearch(const CostNetworks& networks, const Problem& problem, ShardCatalog& catalog,
              int max_splits, std::uint64_t seed, Interrupt& interrupt);

  /// Takes hardly any change that makes the plan dearer, for when there is little time.
  void keep_cool() { hot_ = kCool; }

  /// From now on shards with an origin that lie on another device than that take no more than
  /// `most_moved` bytes in all.
  void keep_near(std::vector<Origin> origins, double most_moved);

  /// Takes up a plan that keeps the memory of all devices; nothing better is known.
  void start(const SplitPlan& plan);

  /// Anneals from the plan at hand until `progress` is 1. Throws Interrupted; the best plan is
  /// there all the same.
  void run(const Progress& progress);

  /// The best plan since `start`, and its cost by PlanObjective, ms.
  const SplitPlan& best() const { return best_; }
  double best_cost() const { return best_cost_; }

  /// Times that changes were drawn, so far.
  std::int64_t steps() const { return steps_; }

  /// By PlanObjective, so far.
  std::int64_t evaluations() const { return evaluations_; }

 private:
  static constexpr double kCool = 1e-4;

  using Kind = ShardCatalog::Kind;

  /// What a device would hold after a change.
  struct After {
    int device;
    double output_dim;
    std::int64_t bytes;
    float compute;  // ms
  };

  /// Shards that are taken off their devices, and others that are put on devices in their place.
  struct Change {
    std::vector<int> removed;
    std::vector<PlacedShard> added;
    int more_splits = 0;
    double more_moved = 0.0;   // bytes
    std::vector<After> after;  // of the devices changed
    std::size_t row = 0;       // of `rows_`, of the first of these
    double estimate = 0.0;     // of the cost, ms
  };

  static double hot(const Problem& problem);
  static std::size_t index(int number) { return static_cast<std::size_t>(number); }
  const float* sums(std::size_t device) const { return sums_.data() + device * sums_size_; }

  void step(double done);
  void add_up();
  void look_at_loads();

  std::size_t draw_changes();
  bool draw(Change& change);
  bool draw_move(Change& change, int shard);
  bool draw_trade(Change& change, int shard);
  bool draw_split(Change& change, int shard);
  bool draw_merge(Change& change);
  int draw_shard();
  int draw_other_device(int device);
  bool is_movable(int shard) const;

  bool keeps_limits(Change& change);
  double moved(const PlacedShard& shard) const;
  After& after(Change& change, int device);
  void add_up_rows(Change& change);
  void compute(std::size_t count);
  double estimate(const Change& change) const;
  void choose(std::size_t count);
  std::size_t draw_by_cost(const PerLane<double>& costs, double heat);
  void put_in_lane(const Change& change, std::size_t lane);
  void take_out_of_lane(const Change& change, std::size_t lane);
  void show(std::size_t device);
  void apply(const Change& change);
  void remove(std::vector<int> shards);
  void keep_if_best();

  const CostNetworks& networks_;
  const Problem& problem_;
  ShardCatalog& catalog_;
  const int max_splits_;
  Interrupt& interrupt_;
  PlanObjective objective_;
  const std::size_t devices_;
  const std::size_t sums_size_;
  double hot_;
  std::vector<Origin> origins_;
  double most_moved_ = 0.0;
  Random random_;
  std::int64_t evaluations_ = 0;
  std::int64_t steps_ = 0;

  // The plan at hand.
  SplitPlan plan_;
  std::vector<std::vector<int>> on_device_;  // shards
  AlignedVector<float> sums_;                // [devices][sums of the set network]
  std::vector<float> compute_;               // ms
  std::vector<double> output_dims_;
  std::vector<std::int64_t> bytes_;
  double cost_ = 0.0;
  double moved_ = 0.0;  // bytes away from their origin
  int changes_since_adding_up_ = 0;

  // What it is like, as estimates need it.
  std::vector<double> backward_;     // ms
  std::vector<double> busy_;         // compute and backward, ms
  double last_forward_ = 0.0;        // forward of the device that starts it last, ms
  std::vector<int> by_busy_;         // devices, the busiest first
  std::vector<int> by_output_dims_;  // devices, the one that sends most first

  std::vector<Change> changes_;
  std::vector<std::size_t> chosen_;  // of the changes
  AlignedVector<float> rows_;        // sums of changed devices
  std::size_t used_rows_ = 0;
  AlignedVector<float> nothing_;                       // sums that are added to no device
  AlignedVector<float> compute_lanes_, output_lanes_;  // [devices][kLanes]
  SetNetwork::Workspace workspace_;

  SplitPlan best_;
  double best_cost_ = 0.0;
};

}  // namespace neuroshard
