#include "greedy_passes.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "device_compute.hpp"
#include "shards.hpp"

namespace neuroshard {

namespace {

// Much more than double precision loses in adding and subtracting output dims.
constexpr double kSlack = 1e-12;

}  // namespace

GreedyPasses::GreedyPasses(const CostNetworks& networks, const Problem& problem,
                           const ShardCatalog& catalog, std::vector<double> output_dim_limits)
    : networks_(networks),
      catalog_(catalog),
      devices_(static_cast<std::size_t>(problem.devices())),
      memory_bytes_(problem.constraints().memory_bytes),
      most_memory_bytes_(*std::max_element(memory_bytes_.begin(), memory_bytes_.end())),
      output_dim_limits_(std::move(output_dim_limits)),
      loads_of_devices_(devices_ * kLanes),
      cost_(devices_ * kLanes),
      rounded_memory_(devices_ * kLanes),
      rounded_output_dims_(devices_ * kLanes),
      nowhere_(networks.set().sums_size()) {
  make_initial_loads(problem);
  const auto tables = static_cast<std::size_t>(problem.tables());
  for (Pass& pass : passes_) {
    pass.loads = initial_loads_;
    pass.loads.resize(initial_loads_.size() + std::min(2 * devices_, tables));
    pass.sums.resize(pass.loads.size() * nowhere_.size());
    std::copy(initial_sums_.begin(), initial_sums_.end(), pass.sums.begin());
  }
}

/// A load that holds nothing, and one for each device that tables are pinned to.
void GreedyPasses::make_initial_loads(const Problem& problem) {
  const std::span<const float> empty = networks_.set().empty_sums();
  const Placement pinned = pinned_placement(problem);
  initial_loads_.resize(1);
  initial_sums_.assign(empty.begin(), empty.end());
  initial_of_devices_.resize(devices_);
  for (std::size_t device = 0; device < devices_; ++device) {
    if (pinned[device].empty()) {
      continue;
    }
    std::vector<ShardCatalog::Kind> kinds;  // that of a table is its index
    Load load{.device = static_cast<std::int32_t>(device)};
    for (const std::int64_t table : pinned[device]) {
      kinds.push_back(static_cast<ShardCatalog::Kind>(table));
      load.memory += catalog_.bytes(kinds.back());
      load.output_dims += catalog_.output_dim(kinds.back());
    }
    const DeviceCompute compute = device_compute(networks_.set(), catalog_, kinds);
    load.cost = compute.cost;
    initial_of_devices_[device] = static_cast<std::uint32_t>(initial_loads_.size());
    initial_loads_.push_back(load);
    initial_sums_.insert(initial_sums_.end(), compute.sums.begin(), compute.sums.end());
  }
}

/// Makes entry `index` of the pass's loads what the device holds now.
inline void GreedyPasses::show(std::size_t lane, int device, std::uint32_t index) {
  const Load& load = passes_[lane].loads[index];
  const std::size_t i = at(lane, device);
  loads_of_devices_[i] = index;
  cost_[i] = load.cost;
  rounded_memory_[i] = static_cast<float>(load.memory + most_memory_bytes_ -
                                          memory_bytes_[static_cast<std::size_t>(device)]);
  rounded_output_dims_[i] = static_cast<float>(load.output_dims);
}

void GreedyPasses::start(std::size_t lane, std::span<const ShardCatalog::Kind> shards,
                         std::size_t limit) {
  reset(lane, shards);
  go_back(lane, limit);
}

void GreedyPasses::start_from(std::size_t from, std::size_t to, std::size_t limit) {
  if (from != to) {
    copy(from, to);
  }
  go_back(to, limit);
}

/// Empties the devices of a lane.
void GreedyPasses::reset(std::size_t lane, std::span<const ShardCatalog::Kind> shards) {
  Pass& pass = passes_[lane];
  pass.shards = shards;
  pass.devices.resize(shards.size());
  pass.placed = 0;
  pass.last_load = static_cast<std::uint32_t>(initial_loads_.size() - 1);
  for (int device = 0; std::cmp_less(device, devices_); ++device) {
    show(lane, device, initial_of_devices_[static_cast<std::size_t>(device)]);
  }
}

void GreedyPasses::copy(std::size_t from, std::size_t to) {
  const Pass& other = passes_[from];
  reset(to, other.shards);
  Pass& pass = passes_[to];
  pass.placed = other.placed;
  std::copy_n(other.devices.begin(), pass.placed, pass.devices.begin());
  pass.last_load = other.last_load;
  pass.loads.resize(std::max(pass.loads.size(), other.loads.size()));
  pass.sums.resize(pass.loads.size() * nowhere_.size());
  std::copy_n(other.loads.begin(), pass.last_load + 1, pass.loads.begin());
  std::copy_n(other.sums.begin(), (pass.last_load + 1) * nowhere_.size(), pass.sums.begin());
  for (std::size_t index = 1; index <= pass.last_load; ++index) {
    show(to, pass.loads[index].device, static_cast<std::uint32_t>(index));
  }
}

/// Takes back the placements from the first on that the limit forbids.
void GreedyPasses::go_back(std::size_t lane, std::size_t limit) {
  Pass& pass = passes_[lane];
  for (; pass.loads[pass.last_load].limit > limit; --pass.last_load) {
    const Load& load = pass.loads[pass.last_load];
    pass.placed = load.placed;
    show(lane, load.device, load.before);
  }
  pass.output_dim_limit = output_dim_limits_[limit];
  pass.taken_over = pass.placed;
  prepare(lane);
}

void GreedyPasses::device_loads(std::size_t lane, float* compute, float* output_dims) const {
  for (std::size_t i = lane; i < cost_.size(); i += kLanes) {
    compute[i - lane] = loads_of_devices_[i] != 0 ? cost_[i] : networks_.set().empty_cost();
    output_dims[i - lane] = rounded_output_dims_[i];
  }
}

void GreedyPasses::place_next() {
  kernels().choose({.count = devices_,
                    .cost = cost_.data(),
                    .memory = rounded_memory_.data(),
                    .output_dims = rounded_output_dims_.data()},
                   rounded_memory_limit_.data(), rounded_output_dim_limit_.data(), first_.data(),
                   last_.data());
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    settle(lane);
  }
  networks_.set().add(sums_before_, contribution_, sums_after_, cost_after_, workspace_);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    Pass& pass = passes_[lane];
    if (pass.running) {
      const std::uint32_t index = load_after_[lane];
      pass.loads[index].cost = cost_after_[lane];
      show(lane, pass.loads[index].device, index);
      ++pass.placed;
      prepare(lane);
    }
  }
}

/// Takes up the next shard, if there is one.
inline void GreedyPasses::prepare(std::size_t lane) {
  Pass& pass = passes_[lane];
  pass.running = pass.placed < pass.shards.size();
  if (pass.running) {
    const ShardCatalog::Kind kind = pass.shards[pass.placed];
    pass.bytes = catalog_.bytes(kind);
    pass.output_dim = catalog_.output_dim(kind);
    contribution_[lane] = catalog_.contribution(kind);
    rounded_memory_limit_[lane] = static_cast<float>(most_memory_bytes_ - pass.bytes);
    rounded_output_dim_limit_[lane] =
        static_cast<float>(pass.output_dim_limit * (1.0 + kSlack) - pass.output_dim);
  }
}

/// Decides which device takes the next shard; none does if the pass has ended.
inline void GreedyPasses::settle(std::size_t lane) {
  Pass& pass = passes_[lane];
  // Rounding keeps the order, so no open device was left out. Where the one chosen is not open, or
  // others cost the same, the exact numbers decide: of equals the one with fewer bytes, then the
  // lower number, so nothing beats the first if it holds none.
  int device = first_[lane];
  if (pass.running && device >= 0) {
    const Load& chosen = pass.loads[loads_of_devices_[at(lane, device)]];
    if (!open(pass, device, chosen)) {
      device = choose_exactly(lane, 0, static_cast<int>(devices_) - 1);
    } else if (device != last_[lane] && chosen.memory > 0) {
      device = choose_exactly(lane, device, last_[lane]);
    }
  }
  pass.running &= device >= 0;
  if (!pass.running) {  // nothing to nowhere; the catalog may have moved what it would have added
    sums_before_[lane] = nowhere_.data();
    contribution_[lane] = nowhere_.data();
    sums_after_[lane] = nowhere_.data();
    return;
  }
  pass.devices[pass.placed] = device;
  const std::uint32_t before = loads_of_devices_[at(lane, device)];
  const std::int64_t memory = pass.loads[before].memory + pass.bytes;
  const double output_dims = pass.loads[before].output_dims + pass.output_dim;
  std::uint32_t lowest_limit = pass.loads[pass.last_load].limit;
  while (output_dims > output_dim_limits_[lowest_limit]) {  // that of the pass is not exceeded
    ++lowest_limit;
  }
  std::uint32_t after = before;
  if (before < initial_loads_.size() || pass.loads[before].limit < lowest_limit) {
    after = ++pass.last_load;
    if (after == pass.loads.size()) {
      pass.loads.resize(
          std::min(2 * pass.loads.size(), initial_loads_.size() + pass.shards.size()));
      pass.sums.resize(pass.loads.size() * nowhere_.size());
    }
    pass.loads[after].device = device;
    pass.loads[after].before = before;
    pass.loads[after].limit = lowest_limit;
    pass.loads[after].placed = pass.placed;
  }
  pass.loads[after].memory = memory;
  pass.loads[after].output_dims = output_dims;
  load_after_[lane] = after;
  sums_before_[lane] = pass.sums.data() + before * nowhere_.size();
  sums_after_[lane] = pass.sums.data() + after * nowhere_.size();
}

int GreedyPasses::choose_exactly(std::size_t lane, int first, int last) const {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Pass& pass = passes_[lane];
  int best = -1;
  float best_cost = kInfinity;
  std::int64_t best_memory = 0;
  for (int device = first; device <= last; ++device) {
    const Load& load = pass.loads[loads_of_devices_[at(lane, device)]];
    if ((load.cost < best_cost || (load.cost == best_cost && load.memory < best_memory)) &&
        open(pass, device, load)) {
      best = device;
      best_cost = load.cost;
      best_memory = load.memory;
    }
  }
  return best;
}

}  // namespace neuroshard
