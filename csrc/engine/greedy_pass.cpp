#include "greedy_pass.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/kernels.hpp"

namespace neuroshard {

namespace {

constexpr std::size_t kPlacementsPerCheck = 1024;  // of the interrupt
constexpr std::size_t kSnapshotBytes = std::size_t{4} << 20;  // kept by one pass, at most

}  // namespace

GreedyPass::GreedyPass(const CostNetworks& networks, const Problem& problem,
                       const ShardCatalog& catalog, Interrupt& interrupt)
    : networks_(networks), problem_(problem), catalog_(catalog), interrupt_(interrupt) {
  const auto devices = static_cast<std::size_t>(problem.devices());
  devices_.ranking.resize(devices);
  devices_.cost.resize(padded(devices));
  devices_.memory.resize(devices);
  devices_.output_dim_sum.resize(devices);
  devices_.sums.resize(devices * networks.set().sums_size());
  device_costs_.resize(devices);
  most_snapshots_ =
      std::max<std::size_t>(1, kSnapshotBytes / (devices_.sums.size() * sizeof(float)));
}

void GreedyPass::start(std::span<const ShardCatalog::Kind> shards_in_order,
                       std::span<const double> output_dim_limits) {
  shards_in_order_ = shards_in_order;
  limits_ = output_dim_limits;
  device_.clear();
  cost_after_.clear();
  snapshots_used_ = 0;
  clear_devices();
  place(0);
}

bool GreedyPass::next() {
  if (snapshots_used_ == 0) {
    return false;
  }
  Snapshot& snapshot = snapshots_[snapshots_used_ - 1];
  std::swap(devices_, snapshot.devices);
  device_.resize(snapshot.placed);
  cost_after_.resize(snapshot.placed);
  const std::size_t limit = snapshot.low++;
  if (snapshot.low == snapshot.high) {
    --snapshots_used_;
  } else {
    snapshot.devices = devices_;
  }
  place(limit);
  return true;
}

std::span<const float> GreedyPass::device_costs() {
  std::fill(device_costs_.begin(), device_costs_.end(), networks_.set().empty_cost());
  for (std::size_t placed = 0; placed < device_.size(); ++placed) {
    device_costs_[static_cast<std::size_t>(device_[placed])] = cost_after_[placed];
  }
  return device_costs_;
}

void GreedyPass::clear_devices() {
  std::iota(devices_.ranking.begin(), devices_.ranking.end(), 0);
  std::fill(devices_.cost.begin(), devices_.cost.end(), std::numeric_limits<float>::infinity());
  std::fill_n(devices_.cost.begin(), devices_.ranking.size(), 0.0F);  // not what the network gives
  std::fill(devices_.memory.begin(), devices_.memory.end(), 0);
  std::fill(devices_.output_dim_sum.begin(), devices_.output_dim_sum.end(), 0.0);
  const std::span<const float> empty = networks_.set().empty_sums();
  for (auto sums = devices_.sums.begin(); sums != devices_.sums.end();) {
    sums = std::copy(empty.begin(), empty.end(), sums);
  }
}

void GreedyPass::place(std::size_t limit) {
  interrupt_.check();  // what is left may be too little to come to the check below
  for (std::size_t placed = device_.size(); placed < shards_in_order_.size(); ++placed) {
    if (placed % kPlacementsPerCheck == 0) {
      interrupt_.check();
    }
    const ShardCatalog::Kind kind = shards_in_order_[placed];
    const Choice choice = choose(kind, limits_[limit]);
    take_snapshots(choice.better_limit, limit);
    if (choice.rank == devices_.ranking.size()) {
      break;
    }
    put(kind, choice.rank);
  }
}

GreedyPass::Choice GreedyPass::choose(ShardCatalog::Kind kind, double output_dim_limit) const {
  const std::int64_t memory_limit = problem_.memory_bytes() - catalog_.bytes(kind);
  const double output_dim = catalog_.output_dim(kind);
  Choice choice{.rank = 0, .better_limit = std::numeric_limits<double>::infinity()};
  for (; choice.rank < devices_.ranking.size(); ++choice.rank) {
    const auto device = static_cast<std::size_t>(devices_.ranking[choice.rank]);
    if (devices_.memory[device] > memory_limit) {
      continue;
    }
    const double needed = devices_.output_dim_sum[device] + output_dim;
    if (needed <= output_dim_limit) {
      break;
    }
    choice.better_limit = std::min(choice.better_limit, needed);
  }
  return choice;
}

void GreedyPass::put(ShardCatalog::Kind kind, std::size_t rank) {
  const auto device = static_cast<std::size_t>(devices_.ranking[rank]);
  const SetNetwork& set = networks_.set();
  const float cost = set.add(devices_.sums.data() + device * set.sums_size(),
                             catalog_.contribution(kind), workspace_);
  devices_.memory[device] += catalog_.bytes(kind);
  devices_.output_dim_sum[device] += catalog_.output_dim(kind);
  device_.push_back(static_cast<int>(device));
  cost_after_.push_back(cost);
  // What is not a number has no rank; such a plan is never the best.
  rank_anew(rank, std::isnan(cost) ? std::numeric_limits<float>::infinity() : cost);
}

void GreedyPass::rank_anew(std::size_t rank, float cost) {
  std::vector<int>& ranking = devices_.ranking;
  AlignedVector<float>& costs = devices_.cost;
  const int device = ranking[rank];
  const bool rises = costs[rank] < cost;
  const std::size_t below =
      kernels().count_below(costs.data(), cost, costs.size() / Kernels::kLanes);
  std::size_t target = rises ? below - 1 : below;  // among the others
  const auto move = [](auto& values, std::size_t from, std::size_t to) {
    const auto at = [&](std::size_t i) { return values.begin() + static_cast<std::ptrdiff_t>(i); };
    const auto value = values[from];
    if (from < to) {
      std::copy(at(from + 1), at(to + 1), at(from));
    } else {
      std::copy_backward(at(to), at(from), at(from + 1));
    }
    values[to] = value;
  };
  move(ranking, rank, target);
  move(costs, rank, target);
  costs[target] = cost;
  for (; target + 1 < ranking.size() && costs[target + 1] == cost &&
         !precedes(device, ranking[target + 1]);
       ++target) {
    std::swap(ranking[target], ranking[target + 1]);
  }
}

bool GreedyPass::precedes(int a, int b) const {  // of two that cost the same
  const std::int64_t memory_a = devices_.memory[static_cast<std::size_t>(a)];
  const std::int64_t memory_b = devices_.memory[static_cast<std::size_t>(b)];
  return memory_a != memory_b ? memory_a < memory_b : a < b;
}

void GreedyPass::take_snapshots(double better_limit, std::size_t limit) {
  // Limits from here on have a snapshot already, of an earlier placement.
  const std::size_t end = snapshots_used_ > 0 ? snapshots_[snapshots_used_ - 1].low : limits_.size();
  if (end == limit + 1 || limits_[end - 1] < better_limit) {
    return;
  }
  const auto first = std::lower_bound(limits_.begin() + static_cast<std::ptrdiff_t>(limit) + 1,
                                      limits_.begin() + static_cast<std::ptrdiff_t>(end),
                                      better_limit);
  const auto low = static_cast<std::size_t>(first - limits_.begin());
  if (snapshots_used_ == most_snapshots_) {
    snapshots_[snapshots_used_ - 1].low = low;  // goes on from earlier than it has to
    return;
  }
  if (snapshots_used_ == snapshots_.size()) {
    snapshots_.emplace_back();
  }
  Snapshot& snapshot = snapshots_[snapshots_used_++];
  snapshot.devices = devices_;
  snapshot.placed = device_.size();
  snapshot.low = low;
  snapshot.high = end;
}

}  // namespace neuroshard
