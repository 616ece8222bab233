#include "greedy_passes.hpp"

#include <algorithm>
#include <cmath>

namespace neuroshard {

GreedyPasses::GreedyPasses(const CostNetworks& networks, const Problem& problem,
                           const ShardCatalog& catalog)
    : networks_(networks),
      catalog_(catalog),
      devices_(static_cast<std::size_t>(problem.devices())),
      memory_bytes_(problem.memory_bytes()),
      floats_are_exact_(problem.output_dims_are_whole()),
      cost_(devices_ * kLanes),
      output_dims_(devices_ * kLanes),
      exact_output_dims_(devices_ * kLanes),
      memory_(devices_ * kLanes),
      rounded_memory_(devices_ * kLanes),
      used_(devices_ * kLanes),
      sums_(kLanes * devices_ * networks.set().sums_size()),
      nowhere_(networks.set().sums_size()) {}

void GreedyPasses::start(std::size_t lane, std::span<const ShardCatalog::Kind> shards,
                         double output_dim_limit) {
  shards_[lane] = shards;
  placed_[lane] = 0;
  placements_[lane].resize(shards.size());
  start_from(lane, lane, output_dim_limit);
}

void GreedyPasses::start_from(std::size_t from, std::size_t to, double output_dim_limit) {
  const auto placements = placements_[from].begin();
  const auto end = std::find_if(
      placements, placements + static_cast<std::ptrdiff_t>(placed_[from]),
      [&](const Placement& placement) { return placement.output_dims > output_dim_limit; });
  const auto kept = static_cast<std::size_t>(end - placements);
  if (from != to) {
    shards_[to] = shards_[from];
    placements_[to].resize(shards_[to].size());
    std::copy(placements, end, placements_[to].begin());
  }
  exact_output_dim_limit_[to] = output_dim_limit;
  output_dim_limit_[to] = static_cast<float>(std::floor(output_dim_limit));
  running_[to] = true;
  clear_devices(to);
  for (placed_[to] = 0; placed_[to] < kept;) {
    const Placement placement = placements_[to][placed_[to]];
    kernels().add_row(sums(to, placement.device),
                      catalog_.contribution(shards_[to][placed_[to]]),
                      nowhere_.size() / Kernels::kBlock);
    record(to, placement);
  }
}

std::vector<int> GreedyPasses::devices(std::size_t lane) const {
  std::vector<int> devices;
  for (std::size_t position = 0; position < placed_[lane]; ++position) {
    devices.push_back(placements_[lane][position].device);
  }
  return devices;
}

void GreedyPasses::step() {
  choose();
  put();
}

void GreedyPasses::device_loads(std::size_t lane, float* compute, float* output_dims) const {
  for (std::size_t i = lane; i < cost_.size(); i += kLanes) {
    compute[i - lane] = used_[i] != 0 ? cost_[i] : networks_.set().empty_cost();
    output_dims[i - lane] =
        floats_are_exact_ ? output_dims_[i] : static_cast<float>(exact_output_dims_[i]);
  }
}

void GreedyPasses::clear_devices(std::size_t lane) {
  highest_output_dims_[lane] = 0.0;
  highest_memory_[lane] = 0;
  const std::span<const float> empty = networks_.set().empty_sums();
  for (std::size_t device = 0; device < devices_; ++device) {
    const std::size_t i = device * kLanes + lane;
    cost_[i] = 0.0F;
    output_dims_[i] = 0.0F;
    exact_output_dims_[i] = 0.0;
    memory_[i] = 0;
    rounded_memory_[i] = 0.0F;
    used_[i] = 0;
    std::copy(empty.begin(), empty.end(), sums(lane, static_cast<int>(device)));
  }
}

void GreedyPasses::choose() {
  PerLane<double> exactly_added{};
  PerLane<float> added{};
  PerLane<std::int64_t> memory_limit{};
  PerLane<float> rounded_memory_limit{};
  bool memory_matters = false;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    if (running_[lane]) {
      const ShardCatalog::Kind kind = shards_[lane][placed_[lane]];
      exactly_added[lane] = catalog_.output_dim(kind);
      added[lane] = static_cast<float>(exactly_added[lane]);
      memory_limit[lane] = memory_bytes_ - catalog_.bytes(kind);
      rounded_memory_limit[lane] = static_cast<float>(memory_limit[lane]);
      memory_matters |= highest_memory_[lane] > memory_limit[lane];
    }
  }
  if (floats_are_exact_) {
    kernels().choose({.devices = devices_,
                      .cost = cost_.data(),
                      .output_dims = output_dims_.data(),
                      .added_output_dim = added.data(),
                      .output_dim_limit = output_dim_limit_.data(),
                      .memory = memory_.data(),
                      .memory_limit = memory_limit.data(),
                      .rounded_memory = rounded_memory_.data(),
                      .rounded_memory_limit = rounded_memory_limit.data(),
                      .memory_matters = memory_matters},
                     chosen_.data());
  } else {
    kernels().choose_exactly({.devices = devices_,
                              .cost = cost_.data(),
                              .output_dims = exact_output_dims_.data(),
                              .added_output_dim = exactly_added.data(),
                              .output_dim_limit = exact_output_dim_limit_.data(),
                              .memory = memory_.data(),
                              .memory_limit = memory_limit.data(),
                              .rounded_memory = rounded_memory_.data(),
                              .rounded_memory_limit = rounded_memory_limit.data(),
                              .memory_matters = memory_matters},
                             chosen_.data());
  }
}

void GreedyPasses::put() {
  PerLane<float*> to{};
  PerLane<const float*> contribution{};
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    running_[lane] &= chosen_[lane] >= 0;
    to[lane] = running_[lane] ? sums(lane, chosen_[lane]) : nowhere_.data();
    contribution[lane] =
        running_[lane] ? catalog_.contribution(shards_[lane][placed_[lane]]) : nowhere_.data();
  }
  PerLane<float> cost{};
  networks_.set().add(to, contribution, cost, workspace_);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    if (running_[lane]) {
      const std::size_t i = static_cast<std::size_t>(chosen_[lane]) * kLanes + lane;
      record(lane, {.device = chosen_[lane],
                    .cost = cost[lane],
                    .output_dims = exact_output_dims_[i] +
                                   catalog_.output_dim(shards_[lane][placed_[lane]])});
    }
  }
}

void GreedyPasses::record(std::size_t lane, const Placement& placement) {
  const std::size_t i = static_cast<std::size_t>(placement.device) * kLanes + lane;
  const std::size_t position = placed_[lane]++;
  placements_[lane][position] = placement;
  cost_[i] = placement.cost;
  exact_output_dims_[i] = placement.output_dims;
  output_dims_[i] = static_cast<float>(placement.output_dims);
  memory_[i] += catalog_.bytes(shards_[lane][position]);
  rounded_memory_[i] = static_cast<float>(memory_[i]);
  used_[i] = 1;
  highest_output_dims_[lane] = std::max(highest_output_dims_[lane], placement.output_dims);
  highest_memory_[lane] = std::max(highest_memory_[lane], memory_[i]);
  running_[lane] = !complete(lane);
}

}  // namespace neuroshard
