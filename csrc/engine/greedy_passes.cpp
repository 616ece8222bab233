#include "greedy_passes.hpp"

#include <algorithm>
#include <cmath>

namespace neuroshard {

namespace {

constexpr std::size_t kPlacementsPerCheck = 256;  // of the interrupt

}  // namespace

GreedyPasses::GreedyPasses(const CostNetworks& networks, const Problem& problem,
                           const ShardCatalog& catalog, Interrupt& interrupt)
    : networks_(networks),
      problem_(problem),
      catalog_(catalog),
      interrupt_(interrupt),
      floats_are_exact_(problem.output_dims_are_whole()) {
  const auto devices = static_cast<std::size_t>(problem.devices());
  cost_.resize(devices * kLanes);
  output_dims_.resize(devices * kLanes);
  exact_output_dims_.resize(devices * kLanes);
  memory_.resize(devices * kLanes);
  rounded_memory_.resize(devices * kLanes);
  used_.resize(devices * kLanes);
  device_costs_.resize(devices * kLanes);
  sums_.resize(kLanes * devices * networks.set().sums_size());
  nowhere_.resize(networks.set().sums_size());
}

void GreedyPasses::run(std::span<const Pass> passes) {
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const Pass& pass = passes[std::min(lane, passes.size() - 1)];  // free lanes repeat the last one
    shards_[lane] = pass.shards.data();
    output_dim_limit_[lane] = static_cast<float>(std::floor(pass.output_dim_limit));
    exact_output_dim_limit_[lane] = pass.output_dim_limit;
  }
  clear_devices();
  const std::size_t shards = passes.front().shards.size();
  device_.resize(shards * kLanes);
  for (std::size_t position = 0; position < shards; ++position) {
    if (position % kPlacementsPerCheck == 0) {
      interrupt_.check();
    }
    choose(position);
    if (std::none_of(complete_.begin(), complete_.end(), [](bool complete) { return complete; })) {
      return;
    }
    put(position);
  }
}

std::vector<int> GreedyPasses::devices(std::size_t lane) const {
  std::vector<int> devices;
  devices.reserve(device_.size() / kLanes);
  for (std::size_t i = lane; i < device_.size(); i += kLanes) {
    devices.push_back(device_[i]);
  }
  return devices;
}

const float* GreedyPasses::device_costs() {
  for (std::size_t i = 0; i < cost_.size(); ++i) {
    device_costs_[i] =
        used_[i] != 0 ? cost_[i] : networks_.set().empty_cost();
  }
  return device_costs_.data();
}

const float* GreedyPasses::output_dims() {
  if (!floats_are_exact_) {
    std::transform(exact_output_dims_.begin(), exact_output_dims_.end(), output_dims_.begin(),
                   [](double dims) { return static_cast<float>(dims); });
  }
  return output_dims_.data();
}

void GreedyPasses::clear_devices() {
  highest_memory_.fill(0);
  complete_.fill(true);
  std::fill(cost_.begin(), cost_.end(), 0.0F);
  std::fill(output_dims_.begin(), output_dims_.end(), 0.0F);
  std::fill(exact_output_dims_.begin(), exact_output_dims_.end(), 0.0);
  std::fill(memory_.begin(), memory_.end(), 0);
  std::fill(rounded_memory_.begin(), rounded_memory_.end(), 0.0F);
  std::fill(used_.begin(), used_.end(), 0);
  const std::span<const float> empty = networks_.set().empty_sums();
  for (auto sums = sums_.begin(); sums != sums_.end();) {
    sums = std::copy(empty.begin(), empty.end(), sums);
  }
}

void GreedyPasses::choose(std::size_t position) {
  PerLane<double> exactly_added{};
  PerLane<float> added{};
  PerLane<std::int64_t> memory_limit{};
  PerLane<float> rounded_memory_limit{};
  bool memory_matters = false;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const ShardCatalog::Kind kind = shards_[lane][position];
    exactly_added[lane] = catalog_.output_dim(kind);
    added[lane] = static_cast<float>(exactly_added[lane]);
    memory_limit[lane] = problem_.memory_bytes() - catalog_.bytes(kind);
    rounded_memory_limit[lane] = static_cast<float>(memory_limit[lane]);
    memory_matters |= highest_memory_[lane] > memory_limit[lane];
  }
  const auto devices = static_cast<std::size_t>(problem_.devices());
  if (floats_are_exact_) {
    kernels().choose({.devices = devices,
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
    kernels().choose_exactly({.devices = devices,
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
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    complete_[lane] &= chosen_[lane] >= 0;
  }
}

void GreedyPasses::put(std::size_t position) {
  const SetNetwork& set = networks_.set();
  const std::size_t devices = cost_.size() / kLanes;
  PerLane<float*> sums{};
  PerLane<const float*> contribution{};
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const std::size_t row = lane * devices + static_cast<std::size_t>(chosen_[lane]);
    sums[lane] = complete_[lane] ? sums_.data() + row * set.sums_size() : nowhere_.data();
    contribution[lane] = catalog_.contribution(shards_[lane][position]);
  }
  PerLane<float> cost{};
  set.add(sums, contribution, cost, workspace_);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    if (complete_[lane]) {
      const ShardCatalog::Kind kind = shards_[lane][position];
      const std::size_t i = static_cast<std::size_t>(chosen_[lane]) * kLanes + lane;
      cost_[i] = cost[lane];
      if (floats_are_exact_) {
        output_dims_[i] += static_cast<float>(catalog_.output_dim(kind));
      } else {
        exact_output_dims_[i] += catalog_.output_dim(kind);
      }
      memory_[i] += catalog_.bytes(kind);
      rounded_memory_[i] = static_cast<float>(memory_[i]);
      highest_memory_[lane] = std::max(highest_memory_[lane], memory_[i]);
      used_[i] = 1;
      device_[position * kLanes + lane] = static_cast<int>(chosen_[lane]);
    }
  }
}

}  // namespace neuroshard
