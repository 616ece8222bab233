#include "greedy_passes.hpp"

#include <algorithm>
#include <cmath>

namespace neuroshard {

GreedyPasses::GreedyPasses(const CostNetworks& networks, const Problem& problem,
                           const ShardCatalog& catalog)
    : kernels_(kernels()),
      networks_(networks),
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
      nowhere_(networks.set().sums_size()) {
  contribution_.fill(nowhere_.data());
}

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
  running_[to] = kept < shards_[to].size();
  clear_devices(to);
  placed_[to] = kept;
  for (std::size_t position = 0; position < kept; ++position) {
    const Placement& placement = placements_[to][position];
    const ShardCatalog::Kind kind = shards_[to][position];
    kernels_.add_row(sums(to, placement.device), catalog_.contribution(kind),
                     nowhere_.size() / Kernels::kBlock);
    load_device(to, placement, catalog_.bytes(kind));
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
    output_dims[i - lane] = output_dims_[i];
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
  bool memory_matters = false;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    if (running_[lane]) {
      const ShardCatalog::Kind kind = shards_[lane][placed_[lane]];
      exact_output_dim_[lane] = catalog_.output_dim(kind);
      output_dim_[lane] = static_cast<float>(exact_output_dim_[lane]);
      bytes_[lane] = catalog_.bytes(kind);
      memory_limit_[lane] = memory_bytes_ - bytes_[lane];
      contribution_[lane] = catalog_.contribution(kind);
      rounded_memory_limit_[lane] = static_cast<float>(memory_limit_[lane]);
      memory_matters |= highest_memory_[lane] > memory_limit_[lane];
    }
  }
  if (floats_are_exact_) {
    kernels_.choose({.devices = devices_,
                      .cost = cost_.data(),
                      .output_dims = output_dims_.data(),
                      .added_output_dim = output_dim_.data(),
                      .output_dim_limit = output_dim_limit_.data(),
                      .memory = memory_.data(),
                      .memory_limit = memory_limit_.data(),
                      .rounded_memory = rounded_memory_.data(),
                      .rounded_memory_limit = rounded_memory_limit_.data(),
                      .memory_matters = memory_matters},
                     chosen_.data());
  } else {
    kernels_.choose_exactly({.devices = devices_,
                              .cost = cost_.data(),
                              .output_dims = exact_output_dims_.data(),
                              .added_output_dim = exact_output_dim_.data(),
                              .output_dim_limit = exact_output_dim_limit_.data(),
                              .memory = memory_.data(),
                              .memory_limit = memory_limit_.data(),
                              .rounded_memory = rounded_memory_.data(),
                              .rounded_memory_limit = rounded_memory_limit_.data(),
                              .memory_matters = memory_matters},
                             chosen_.data());
  }
}

void GreedyPasses::put() {
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    running_[lane] &= chosen_[lane] >= 0;
    sums_of_chosen_[lane] = running_[lane] ? sums(lane, chosen_[lane]) : nowhere_.data();
  }
  networks_.set().add(sums_of_chosen_, contribution_, cost_of_chosen_, workspace_);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    if (running_[lane]) {
      const std::size_t position = placed_[lane];
      const std::size_t i = static_cast<std::size_t>(chosen_[lane]) * kLanes + lane;
      const double output_dims =
          floats_are_exact_ ? static_cast<double>(output_dims_[i]) : exact_output_dims_[i];
      Placement& placement = placements_[lane][position];
      placement.device = chosen_[lane];
      placement.cost = cost_of_chosen_[lane];
      placement.output_dims = output_dims + exact_output_dim_[lane];
      load_device(lane, placement, bytes_[lane]);
      placed_[lane] = position + 1;
      running_[lane] = position + 1 < shards_[lane].size();
    }
  }
}

void GreedyPasses::load_device(std::size_t lane, const Placement& placement, std::int64_t bytes) {
  const std::size_t i = static_cast<std::size_t>(placement.device) * kLanes + lane;
  const std::int64_t memory = memory_[i] + bytes;
  cost_[i] = placement.cost;
  output_dims_[i] = static_cast<float>(placement.output_dims);
  if (!floats_are_exact_) {
    exact_output_dims_[i] = placement.output_dims;
  }
  memory_[i] = memory;
  rounded_memory_[i] = static_cast<float>(memory);
  used_[i] = 1;
  highest_output_dims_[lane] = std::max(highest_output_dims_[lane], placement.output_dims);
  highest_memory_[lane] = std::max(highest_memory_[lane], memory);
}

}  // namespace neuroshard
