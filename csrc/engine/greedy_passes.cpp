#include "greedy_passes.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace neuroshard {

namespace {

// Much more than double precision loses in adding and subtracting output dims.
constexpr double kSlack = 1e-12;

}  // namespace

GreedyPasses::GreedyPasses(const CostNetworks& networks, const Problem& problem,
                           const ShardCatalog& catalog)
    : kernels_(kernels()),
      networks_(networks),
      catalog_(catalog),
      devices_(static_cast<std::size_t>(problem.devices())),
      memory_bytes_(problem.memory_bytes()),
      rounding_is_exact_(problem.output_dims_are_whole()),
      cost_(devices_ * kLanes),
      rounded_memory_(devices_ * kLanes),
      rounded_output_dims_(devices_ * kLanes),
      memory_(devices_ * kLanes),
      exact_output_dims_(devices_ * kLanes),
      used_(devices_ * kLanes),
      sums_(kLanes * devices_ * networks.set().sums_size()),
      nowhere_(networks.set().sums_size()) {}

inline void GreedyPasses::load_device(std::size_t lane, const Placement& placement,
                                      std::int64_t bytes) {
  const std::size_t i = at(lane, placement.device);
  const std::int64_t memory = memory_[i] + bytes;
  cost_[i] = placement.cost;
  memory_[i] = memory;
  if (!rounding_is_exact_) {
    exact_output_dims_[i] = placement.output_dims;
  }
  rounded_memory_[i] = static_cast<float>(memory);
  rounded_output_dims_[i] = static_cast<float>(placement.output_dims);
  used_[i] = 1;
  highest_output_dims_[lane] = std::max(highest_output_dims_[lane], placement.output_dims);
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
  output_dim_limit_[to] = output_dim_limit;
  running_[to] = kept < shards_[to].size();
  clear_devices(to);
  placed_[to] = kept;
  taken_over_[to] = kept;
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
  devices.reserve(placed_[lane]);
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
    output_dims[i - lane] = rounded_output_dims_[i];
  }
}

void GreedyPasses::clear_devices(std::size_t lane) {
  highest_output_dims_[lane] = 0.0;
  const std::span<const float> empty = networks_.set().empty_sums();
  for (int device = 0; std::cmp_less(device, devices_); ++device) {
    const std::size_t i = at(lane, device);
    cost_[i] = 0.0F;
    rounded_memory_[i] = 0.0F;
    rounded_output_dims_[i] = 0.0F;
    memory_[i] = 0;
    exact_output_dims_[i] = 0.0;
    used_[i] = 0;
    std::copy(empty.begin(), empty.end(), sums(lane, device));
  }
}

void GreedyPasses::choose() {
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    if (running_[lane]) {
      const ShardCatalog::Kind kind = shards_[lane][placed_[lane]];
      bytes_[lane] = catalog_.bytes(kind);
      output_dim_[lane] = catalog_.output_dim(kind);
      contribution_[lane] = catalog_.contribution(kind);
      rounded_memory_limit_[lane] = static_cast<float>(memory_bytes_ - bytes_[lane]);
      rounded_output_dim_limit_[lane] =
          static_cast<float>(output_dim_limit_[lane] * (1.0 + kSlack) - output_dim_[lane]);
    }
  }
  kernels_.choose({.count = devices_,
                   .cost = cost_.data(),
                   .memory = rounded_memory_.data(),
                   .output_dims = rounded_output_dims_.data()},
                  rounded_memory_limit_.data(), rounded_output_dim_limit_.data(), first_.data(),
                  last_.data());
  // Rounding keeps the order, so no open device was left out. Where the one chosen is not open, or
  // others cost the same, the exact numbers decide: of equals the one with fewer bytes, then the
  // lower number, so nothing beats the first if it holds none.
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    chosen_[lane] = first_[lane];
    if (running_[lane] && first_[lane] >= 0) {
      const bool is_open = open(lane, first_[lane]);
      const bool tie = first_[lane] != last_[lane] && memory_[at(lane, first_[lane])] > 0;
      if (!is_open || tie) {
        chosen_[lane] = is_open ? choose_exactly(lane, first_[lane], last_[lane])
                                : choose_exactly(lane, 0, static_cast<int>(devices_) - 1);
      }
    }
  }
}

int GreedyPasses::choose_exactly(std::size_t lane, int first, int last) const {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  int best = -1;
  float best_cost = kInfinity;
  std::int64_t best_memory = 0;
  for (int device = first; device <= last; ++device) {
    const float cost = cost_[at(lane, device)];
    const std::int64_t memory = memory_[at(lane, device)];
    if ((cost < best_cost || (cost == best_cost && memory < best_memory)) && open(lane, device)) {
      best = device;
      best_cost = cost;
      best_memory = memory;
    }
  }
  return best;
}

void GreedyPasses::put() {
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    running_[lane] &= chosen_[lane] >= 0;
    if (running_[lane]) {
      sums_of_chosen_[lane] = sums(lane, chosen_[lane]);
    } else {  // nothing to nowhere; the catalog may have moved what the lane added last
      sums_of_chosen_[lane] = nowhere_.data();
      contribution_[lane] = nowhere_.data();
    }
  }
  networks_.set().add(sums_of_chosen_, contribution_, cost_of_chosen_, workspace_);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    if (running_[lane]) {
      const std::size_t position = placed_[lane];
      Placement& placement = placements_[lane][position];
      placement.device = chosen_[lane];
      placement.cost = cost_of_chosen_[lane];
      placement.output_dims = output_dims(at(lane, chosen_[lane])) + output_dim_[lane];
      load_device(lane, placement, bytes_[lane]);
      placed_[lane] = position + 1;
      running_[lane] = position + 1 < shards_[lane].size();
    }
  }
}

}  // namespace neuroshard
