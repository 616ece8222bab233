#include "local_search.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "device_compute.hpp"

namespace neuroshard {

namespace {

// Shares of the cost that a change may add with a chance of 1/e: at the beginning of an annealing,
// times the square of devices / tables, between these two; and at its end.
constexpr double kHot = 0.1;
constexpr double kHottest = 5e-2;
constexpr double kLeastHot = 3e-4;
constexpr double kCold = 1e-5;

constexpr std::size_t kDrawn = 64;     // changes of which those that seem best are evaluated
constexpr std::size_t kTries = 8;      // for each of them
constexpr std::size_t kMostMeans = 4;  // evaluated, where each takes the cost of many orders

// Chances of each kind of change; the rest are trades.
constexpr double kMerges = 0.1;
constexpr double kSplits = 0.1;
constexpr double kMoves = 0.4;
constexpr double kJustMerges = 0.5;      // of merges; the others split another shard as well
constexpr double kPiecesThatStay = 0.1;  // where the split shard was, besides the first
constexpr double kTradesForTwo = 0.4;    // of trades

// Chances of the device that a shard is taken from; the rest are any devices.
constexpr double kBusiest = 0.5;
constexpr double kNextBusiest = 0.15;
constexpr double kSendsMost = 0.15;

constexpr int kMostChanges = 256;  // until sums are added up anew: rounding adds up, too

}  // namespace

/// Moving a shard changes the cost by more where devices hold few.
double LocalSearch::hot(const Problem& problem) {
  const double per_table = static_cast<double>(problem.devices()) / problem.tables();
  return std::clamp(kHot * per_table * per_table, kLeastHot, kHottest);
}

LocalSearch::LocalSearch(const CostNetworks& networks, const Problem& problem,
                         ShardCatalog& catalog, int max_splits, std::uint64_t seed,
                         Interrupt& interrupt)
    : networks_(networks),
      problem_(problem),
      catalog_(catalog),
      max_splits_(max_splits),
      interrupt_(interrupt),
      objective_(networks, problem.devices()),
      devices_(static_cast<std::size_t>(problem.devices())),
      sums_size_(networks.set().sums_size()),
      hot_(hot(problem)),
      random_(seed),
      on_device_(devices_),
      sums_(devices_ * sums_size_),
      compute_(devices_),
      output_dims_(devices_),
      bytes_(devices_),
      backward_(devices_),
      busy_(devices_),
      by_busy_(devices_),
      by_output_dims_(devices_),
      changes_(kDrawn),
      nothing_(sums_size_),
      compute_lanes_(devices_ * kLanes),
      output_lanes_(devices_ * kLanes) {
  std::iota(by_busy_.begin(), by_busy_.end(), 0);
  std::iota(by_output_dims_.begin(), by_output_dims_.end(), 0);
}

void LocalSearch::keep_near(std::vector<Origin> origins, double most_moved) {
  origins_ = std::move(origins);
  most_moved_ = most_moved;
}

/// Bytes of it that are away from their origin.
double LocalSearch::moved(const PlacedShard& shard) const {
  if (shard.origin == PlacedShard::kNoOrigin) {
    return 0.0;
  }
  const Origin& origin = origins_[index(shard.origin)];
  const bool is_away = origin.device != Origin::kNone && origin.device != shard.device;
  return is_away ? origin.bytes_per_column * static_cast<double>(catalog_.width(shard.kind)) : 0.0;
}

void LocalSearch::start(const SplitPlan& plan) {
  plan_ = plan;
  add_up();
  cost_ = objective_.evaluate(compute_lanes_.data(), output_lanes_.data(), 1)[0];
  ++evaluations_;
  look_at_loads();
  best_ = plan_;
  best_cost_ = cost_;
}

/// What the devices hold.
void LocalSearch::add_up() {
  for (std::vector<int>& shards : on_device_) {
    shards.clear();
  }
  for (std::size_t shard = 0; shard < plan_.shards.size(); ++shard) {
    on_device_[index(plan_.shards[shard].device)].push_back(static_cast<int>(shard));
  }
  std::vector<Kind> kinds;
  for (std::size_t device = 0; device < devices_; ++device) {
    kinds.clear();
    output_dims_[device] = 0.0;
    bytes_[device] = 0;
    for (const int shard : on_device_[device]) {
      const Kind kind = plan_.shards[index(shard)].kind;
      kinds.push_back(kind);
      output_dims_[device] += catalog_.output_dim(kind);
      bytes_[device] += catalog_.bytes(kind);
    }
    const DeviceCompute compute = device_compute(networks_.set(), catalog_, kinds);
    std::ranges::copy(compute.sums,
                      sums_.begin() + static_cast<std::ptrdiff_t>(device * sums_size_));
    compute_[device] = compute.cost;
    show(device);
  }
  moved_ = 0.0;
  for (const PlacedShard& shard : plan_.shards) {
    moved_ += moved(shard);
  }
  changes_since_adding_up_ = 0;
}

/// Makes the device what it is now in every lane.
void LocalSearch::show(std::size_t device) {
  std::fill_n(compute_lanes_.data() + device * kLanes, kLanes, compute_[device]);
  std::fill_n(output_lanes_.data() + device * kLanes, kLanes,
              static_cast<float>(output_dims_[device]));
}

/// Where the plan at hand is dear.
void LocalSearch::look_at_loads() {
  const PlanCost& costs = objective_.of_plan(compute_lanes_.data(), output_lanes_.data());
  last_forward_ = std::numeric_limits<double>::infinity();
  for (std::size_t device = 0; device < devices_; ++device) {
    backward_[device] = costs.backward()[device * kLanes];
    busy_[device] = compute_[device] + backward_[device];
    last_forward_ = std::min(last_forward_, static_cast<double>(costs.forward()[device * kLanes]));
  }
  std::ranges::sort(by_busy_, [this](int a, int b) {
    return busy_[index(a)] != busy_[index(b)] ? busy_[index(a)] > busy_[index(b)] : a < b;
  });
  std::ranges::sort(by_output_dims_, [this](int a, int b) {
    const double dims_a = output_dims_[index(a)];
    const double dims_b = output_dims_[index(b)];
    return dims_a != dims_b ? dims_a > dims_b : a < b;
  });
}

void LocalSearch::run(const Progress& progress) {
  if (devices_ == 1) {
    return;
  }
  while (true) {
    const double done = progress(evaluations_);
    if (done >= 1.0) {
      return;
    }
    interrupt_.check();
    step(done);
  }
}

/// Draws changes, and takes one of them or none; `done` of the annealing is over.
void LocalSearch::step(double done) {
  ++steps_;
  const std::size_t count = draw_changes();
  if (count == 0) {
    evaluations_ += static_cast<std::int64_t>(kLanes);  // it might go on forever
    return;
  }
  compute(count);
  choose(count);
  for (std::size_t lane = 0; lane < chosen_.size(); ++lane) {
    put_in_lane(changes_[chosen_[lane]], lane);
  }
  const PerLane<double> costs =
      objective_.evaluate(compute_lanes_.data(), output_lanes_.data(), chosen_.size());
  evaluations_ += static_cast<std::int64_t>(chosen_.size());
  for (std::size_t lane = 0; lane < chosen_.size(); ++lane) {
    take_out_of_lane(changes_[chosen_[lane]], lane);
  }
  const double heat = std::abs(cost_) * hot_ * std::pow(kCold / hot_, done);
  const std::size_t taken = draw_by_cost(costs, heat);
  const double more = costs[taken] - cost_;
  if (more <= 0.0 || random_.uniform() < std::exp(-more / heat)) {
    apply(changes_[chosen_[taken]]);
    cost_ = costs[taken];
    look_at_loads();
    keep_if_best();
  }
}

/// Draws changes; how many there are.
std::size_t LocalSearch::draw_changes() {
  std::size_t count = 0;
  used_rows_ = 0;
  for (std::size_t tries = 0; tries < kTries * kDrawn && count < kDrawn; ++tries) {
    Change& change = changes_[count];
    change.removed.clear();
    change.added.clear();
    change.more_splits = 0;
    if (draw(change) && keeps_limits(change)) {
      add_up_rows(change);
      ++count;
    }
  }
  return count;
}

bool LocalSearch::draw(Change& change) {
  const double choice = random_.uniform();
  if (choice < kMerges && !draw_merge(change)) {
    return false;
  }
  if (choice < kMerges * kJustMerges) {
    return true;
  }
  const int shard = draw_shard();
  if (shard < 0) {
    return false;
  }
  if (choice < kMerges + kSplits) {
    return draw_split(change, shard);
  }
  return choice < kMerges + kSplits + kMoves ? draw_move(change, shard) : draw_trade(change, shard);
}

bool LocalSearch::is_movable(int shard) const {
  return problem_.pinned(catalog_.table(plan_.shards[index(shard)].kind)) == Problem::kAnyDevice;
}

/// Mostly of a device that makes the plan dear; -1 where there is none.
int LocalSearch::draw_shard() {
  const double choice = random_.uniform();
  std::size_t device = 0;
  if (choice < kBusiest) {
    device = index(by_busy_[0]);
  } else if (choice < kBusiest + kNextBusiest) {
    device = index(by_busy_[1]);
  } else if (choice < kBusiest + kNextBusiest + kSendsMost) {
    device = index(by_output_dims_[0]);
  } else {
    device = random_.below(devices_);
  }
  const std::vector<int>& shards = on_device_[device];
  if (shards.empty()) {
    return -1;
  }
  const int shard = shards[random_.below(shards.size())];
  return is_movable(shard) ? shard : -1;
}

/// The less busy of two.
int LocalSearch::draw_other_device(int device) {
  const auto any = [&] {
    const auto other = static_cast<int>(random_.below(devices_ - 1));
    return other < device ? other : other + 1;
  };
  const int one = any();
  const int two = any();
  return busy_[index(one)] <= busy_[index(two)] ? one : two;
}

bool LocalSearch::draw_move(Change& change, int shard) {
  const auto [kind, device, origin] = plan_.shards[index(shard)];
  change.removed.push_back(shard);
  change.added.push_back({.kind = kind, .device = draw_other_device(device), .origin = origin});
  return true;
}

/// A shard for one or two of another device.
bool LocalSearch::draw_trade(Change& change, int shard) {
  const auto [kind, device, origin] = plan_.shards[index(shard)];
  const int other_device = draw_other_device(device);
  const std::vector<int>& others = on_device_[index(other_device)];
  if (others.empty()) {
    return false;
  }
  change.removed.push_back(shard);
  change.added.push_back({.kind = kind, .device = other_device, .origin = origin});
  const std::size_t first = random_.below(others.size());
  const std::size_t count = others.size() > 1 && random_.uniform() < kTradesForTwo ? 2 : 1;
  for (std::size_t i = 0; i < count; ++i) {
    const int other =
        others[i == 0 ? first : (first + 1 + random_.below(others.size() - 1)) % others.size()];
    const PlacedShard& there = plan_.shards[index(other)];
    if (there.kind == kind || !is_movable(other)) {
      return false;
    }
    change.removed.push_back(other);
    change.added.push_back({.kind = there.kind, .device = device, .origin = there.origin});
  }
  return true;
}

bool LocalSearch::draw_split(Change& change, int shard) {
  const auto [kind, device, origin] = plan_.shards[index(shard)];
  const std::int64_t pieces = catalog_.pieces(kind);
  if (pieces == 1 || plan_.splits + change.more_splits >= max_splits_ ||
      std::ranges::find(change.removed, shard) != change.removed.end()) {
    return false;
  }
  catalog_.add_pieces({&kind, 1});
  change.removed.push_back(shard);
  ++change.more_splits;
  change.added.push_back({.kind = catalog_.piece(kind), .device = device, .origin = origin});
  for (std::int64_t piece = 1; piece < pieces; ++piece) {
    const bool stays = random_.uniform() < kPiecesThatStay;
    change.added.push_back({.kind = catalog_.piece(kind),
                            .device = stays ? device : draw_other_device(device),
                            .origin = origin});
  }
  return true;
}

/// All pieces of a shard are put together again where one of them is.
bool LocalSearch::draw_merge(Change& change) {
  if (plan_.splits == 0) {
    return false;
  }
  const auto shard = static_cast<int>(random_.below(plan_.shards.size()));
  const auto [kind, device, origin] = plan_.shards[index(shard)];
  const Kind whole = catalog_.whole(kind);
  if (whole == ShardCatalog::kNone) {
    return false;
  }
  // Columns are all alike, so that any shards of the kind make up one of the kind before.
  const auto wanted = static_cast<std::size_t>(catalog_.pieces(whole));
  change.removed.push_back(shard);
  for (std::size_t other = 0; other < plan_.shards.size() && change.removed.size() < wanted;
       ++other) {
    if (plan_.shards[other].kind == kind && plan_.shards[other].origin == origin &&
        std::cmp_not_equal(other, shard)) {
      change.removed.push_back(static_cast<int>(other));
    }
  }
  change.added.push_back({.kind = whole, .device = device, .origin = origin});
  change.more_splits = -1;
  return change.removed.size() == wanted;
}

/// The entry of a device in what a change makes of devices.
LocalSearch::After& LocalSearch::after(Change& change, int device) {
  for (After& of_device : change.after) {
    if (of_device.device == device) {
      return of_device;
    }
  }
  change.after.push_back({.device = device,
                          .output_dim = output_dims_[index(device)],
                          .bytes = bytes_[index(device)],
                          .compute = 0.0F});
  return change.after.back();
}

/// Fills in what the devices hold after a change, but for what they compute; whether they may.
bool LocalSearch::keeps_limits(Change& change) {
  change.after.clear();
  change.more_moved = 0.0;
  for (const int shard : change.removed) {
    const PlacedShard& gone = plan_.shards[index(shard)];
    After& of_device = after(change, gone.device);
    of_device.output_dim -= catalog_.output_dim(gone.kind);
    of_device.bytes -= catalog_.bytes(gone.kind);
    change.more_moved -= moved(gone);
  }
  for (const PlacedShard& come : change.added) {
    After& of_device = after(change, come.device);
    of_device.output_dim += catalog_.output_dim(come.kind);
    of_device.bytes += catalog_.bytes(come.kind);
    change.more_moved += moved(come);
  }
  if (change.more_moved > 0.0 && moved_ + change.more_moved > most_moved_) {
    return false;
  }
  return std::ranges::all_of(change.after, [this](const After& of_device) {
    return of_device.bytes <= problem_.memory_bytes(of_device.device);
  });
}

/// The sums of the set network of the devices changed, which go to rows of their own.
void LocalSearch::add_up_rows(Change& change) {
  change.row = used_rows_;
  used_rows_ += change.after.size();
  if (rows_.size() < used_rows_ * sums_size_) {
    rows_.resize(2 * used_rows_ * sums_size_);
  }
  float* row = rows_.data() + change.row * sums_size_;
  for (const After& of_device : change.after) {
    std::copy_n(sums(index(of_device.device)), sums_size_, row);
    for (const int shard : change.removed) {
      const PlacedShard& gone = plan_.shards[index(shard)];
      if (gone.device == of_device.device) {
        const float* contribution = catalog_.contribution(gone.kind);
        for (std::size_t i = 0; i < sums_size_; ++i) {
          row[i] -= contribution[i];
        }
      }
    }
    for (const PlacedShard& come : change.added) {
      if (come.device == of_device.device) {
        const float* contribution = catalog_.contribution(come.kind);
        for (std::size_t i = 0; i < sums_size_; ++i) {
          row[i] += contribution[i];
        }
      }
    }
    row += sums_size_;
  }
}

/// What devices compute after each of the first `count` changes, and estimates of the costs.
void LocalSearch::compute(std::size_t count) {
  PerLane<const float*> before;
  PerLane<const float*> contribution;
  PerLane<float*> after;
  PerLane<float*> cost_of{};
  contribution.fill(nothing_.data());
  std::size_t lanes = 0;
  const auto evaluate = [&] {
    for (std::size_t lane = lanes; lane < kLanes; ++lane) {
      before[lane] = nothing_.data();
      after[lane] = nothing_.data();
    }
    PerLane<float> costs{};
    networks_.set().add(before, contribution, after, costs, workspace_);
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      *cost_of[lane] = costs[lane];
    }
    lanes = 0;
  };
  for (std::size_t change = 0; change < count; ++change) {
    float* row = rows_.data() + changes_[change].row * sums_size_;
    for (After& of_device : changes_[change].after) {
      before[lanes] = row;
      after[lanes] = row;
      cost_of[lanes] = &of_device.compute;
      row += sums_size_;
      if (++lanes == kLanes) {
        evaluate();
      }
    }
  }
  evaluate();
  for (std::size_t change = 0; change < count; ++change) {
    changes_[change].estimate = estimate(changes_[change]);
  }
}

/// The cost after a change if what a device sends takes time in proportion, and the last device to
/// start the forward all-to-all, for which the others wait, ends it as late as before.
double LocalSearch::estimate(const Change& change) const {
  const auto first_unchanged = [&](const std::vector<int>& devices) {
    const auto found = std::ranges::find_if(devices, [&](int device) {
      return std::ranges::none_of(
          change.after, [device](const After& of_device) { return of_device.device == device; });
    });
    return found == devices.end() ? -1 : *found;
  };
  const int busiest = first_unchanged(by_busy_);
  const int fullest = first_unchanged(by_output_dims_);
  double busy = busiest < 0 ? 0.0 : busy_[index(busiest)];
  double output_dims = fullest < 0 ? 0.0 : output_dims_[index(fullest)];
  for (const After& of_device : change.after) {
    const double before = output_dims_[index(of_device.device)];
    const double scale = before > 0.0 ? of_device.output_dim / before : 1.0;
    busy = std::max(busy, of_device.compute + scale * backward_[index(of_device.device)]);
    output_dims = std::max(output_dims, of_device.output_dim);
  }
  const double most = output_dims_[index(by_output_dims_[0])];
  return busy + last_forward_ * (most > 0.0 ? output_dims / most : 1.0);
}

/// The changes that seem best, each once.
void LocalSearch::choose(std::size_t count) {
  chosen_.resize(count);
  std::iota(chosen_.begin(), chosen_.end(), std::size_t{0});
  const auto estimate = [this](std::size_t change) { return changes_[change].estimate; };
  std::ranges::sort(chosen_, [&](std::size_t a, std::size_t b) {
    return estimate(a) != estimate(b) ? estimate(a) < estimate(b) : a < b;
  });
  // The same change is drawn more than once where there are few.
  const auto repeated = std::ranges::unique(chosen_, {}, estimate);
  chosen_.erase(repeated.begin(), repeated.end());
  chosen_.resize(std::min(objective_.is_mean() ? kMostMeans : kLanes, chosen_.size()));
}

/// One of the changes evaluated: the dearer, the less likely.
std::size_t LocalSearch::draw_by_cost(const PerLane<double>& costs, double heat) {
  const auto end = costs.begin() + static_cast<std::ptrdiff_t>(chosen_.size());
  const double least = *std::min_element(costs.begin(), end);
  PerLane<double> weights{};
  double sum = 0.0;
  for (std::size_t lane = 0; lane < chosen_.size(); ++lane) {
    weights[lane] = std::exp((least - costs[lane]) / heat);
    sum += weights[lane];
  }
  double left = random_.uniform() * sum;
  for (std::size_t lane = 0; lane < chosen_.size(); ++lane) {
    left -= weights[lane];
    if (left < 0.0) {
      return lane;
    }
  }
  return static_cast<std::size_t>(std::min_element(costs.begin(), end) - costs.begin());
}

void LocalSearch::put_in_lane(const Change& change, std::size_t lane) {
  for (const After& of_device : change.after) {
    const std::size_t i = index(of_device.device) * kLanes + lane;
    compute_lanes_[i] = of_device.compute;
    output_lanes_[i] = static_cast<float>(of_device.output_dim);
  }
}

void LocalSearch::take_out_of_lane(const Change& change, std::size_t lane) {
  for (const After& of_device : change.after) {
    const std::size_t device = index(of_device.device);
    compute_lanes_[device * kLanes + lane] = compute_[device];
    output_lanes_[device * kLanes + lane] = static_cast<float>(output_dims_[device]);
  }
}

void LocalSearch::apply(const Change& change) {
  const float* row = rows_.data() + change.row * sums_size_;
  for (const After& of_device : change.after) {
    const std::size_t device = index(of_device.device);
    std::copy_n(row, sums_size_, sums_.data() + device * sums_size_);
    compute_[device] = of_device.compute;
    output_dims_[device] = of_device.output_dim;
    bytes_[device] = of_device.bytes;
    show(device);
    row += sums_size_;
  }
  remove(change.removed);
  for (const PlacedShard& shard : change.added) {
    on_device_[index(shard.device)].push_back(static_cast<int>(plan_.shards.size()));
    plan_.shards.push_back(shard);
  }
  plan_.splits += change.more_splits;
  moved_ += change.more_moved;
  if (++changes_since_adding_up_ == kMostChanges) {
    add_up();
  }
}

/// Takes shards out of the list; the last ones take their places.
void LocalSearch::remove(std::vector<int> shards) {
  std::ranges::sort(shards, std::greater<>{});
  for (const int shard : shards) {
    const auto last = static_cast<int>(plan_.shards.size()) - 1;
    std::erase(on_device_[index(plan_.shards[index(shard)].device)], shard);
    if (shard != last) {
      const PlacedShard moved = plan_.shards[index(last)];
      std::ranges::replace(on_device_[index(moved.device)], last, shard);
      plan_.shards[index(shard)] = moved;
    }
    plan_.shards.pop_back();
  }
}

void LocalSearch::keep_if_best() {
  if (cost_ < best_cost_) {
    best_ = plan_;
    best_cost_ = cost_;
  }
}

}  // namespace neuroshard
