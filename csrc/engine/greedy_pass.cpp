#include "greedy_pass.hpp"

#include <algorithm>
#include <functional>
#include <limits>

namespace neuroshard {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::size_t kPlacementsPerCheck = 1024;  // of the interrupt

}  // namespace

GreedyPass::GreedyPass(const CostNetworks& networks, const Problem& problem,
                       const ShardCatalog& catalog, Interrupt& interrupt)
    : networks_(networks), problem_(problem), catalog_(catalog), interrupt_(interrupt) {
  const auto devices = static_cast<std::size_t>(problem.devices());
  cost_.resize(devices);
  empty_.resize(devices);
  memory_.resize(devices);
  output_dim_sum_.resize(devices);
  encoding_sums_.resize(devices * catalog.encoding_size());
  device_costs_.resize(devices);
}

bool GreedyPass::run(std::span<const ShardCatalog::Kind> shards_in_order, double output_dim_limit) {
  shards_in_order_ = shards_in_order;
  device_.clear();
  cost_after_.clear();
  better_limit_.clear();
  clear_devices();
  return place_from(0, output_dim_limit);
}

bool GreedyPass::rerun(double output_dim_limit) {
  const auto changed = std::find_if(better_limit_.begin(), better_limit_.end(),
                                    [&](double limit) { return limit <= output_dim_limit; });
  const auto kept = static_cast<std::size_t>(changed - better_limit_.begin());
  const std::size_t placed = std::min(kept, device_.size());
  device_.resize(placed);
  better_limit_.resize(placed);
  clear_devices();
  for (std::size_t position = 0; position < placed; ++position) {
    const auto device = static_cast<std::size_t>(device_[position]);
    add_to_device(device, shards_in_order_[position]);
    cost_[device] = cost_after_[position];
  }
  cost_after_.resize(placed);
  return place_from(placed, output_dim_limit);
}

std::span<const float> GreedyPass::device_costs() {
  for (std::size_t device = 0; device < cost_.size(); ++device) {
    device_costs_[device] =
        empty_[device] ? networks_.compute_cost(encoding_sum(device), workspace_) : cost_[device];
  }
  return device_costs_;
}

void GreedyPass::clear_devices() {
  std::fill(cost_.begin(), cost_.end(), 0.0F);
  std::fill(empty_.begin(), empty_.end(), true);
  std::fill(memory_.begin(), memory_.end(), 0);
  std::fill(output_dim_sum_.begin(), output_dim_sum_.end(), 0.0);
  std::fill(encoding_sums_.begin(), encoding_sums_.end(), 0.0F);
}

bool GreedyPass::place_from(std::size_t position, double output_dim_limit) {
  interrupt_.check();  // a rerun may place too little to come to the check below
  for (; position < shards_in_order_.size(); ++position) {
    if (position % kPlacementsPerCheck == 0) {
      interrupt_.check();
    }
    const Choice choice = choose(shards_in_order_[position], output_dim_limit);
    better_limit_.push_back(choice.better_limit);
    if (choice.device == kNone) {
      break;
    }
    const auto device = static_cast<std::size_t>(choice.device);
    add_to_device(device, shards_in_order_[position]);
    cost_[device] = networks_.compute_cost(encoding_sum(device), workspace_);
    device_.push_back(choice.device);
    cost_after_.push_back(cost_[device]);
  }
  changes_at_ = kInfinity;
  for (const double limit : better_limit_) {
    changes_at_ = std::min(changes_at_, limit);
  }
  return device_.size() == shards_in_order_.size();
}

GreedyPass::Choice GreedyPass::choose(ShardCatalog::Kind kind, double output_dim_limit) const {
  const std::int64_t bytes = catalog_.bytes(kind);
  const std::int64_t memory_limit = problem_.memory_bytes() - bytes;
  const double output_dim = catalog_.output_dim(kind);

  Choice choice{.device = kNone, .better_limit = kInfinity};
  bool any_closed = false;
  for (std::size_t device = 0; device < cost_.size(); ++device) {
    if (memory_[device] > memory_limit) {
      continue;
    }
    if (output_dim_sum_[device] + output_dim > output_dim_limit) {
      any_closed = true;
    } else if (choice.device == kNone ||
               precedes(device, static_cast<std::size_t>(choice.device))) {
      choice.device = static_cast<int>(device);
    }
  }
  if (any_closed) {
    for (std::size_t device = 0; device < cost_.size(); ++device) {
      const double needed = output_dim_sum_[device] + output_dim;
      if (memory_[device] <= memory_limit && needed > output_dim_limit &&
          needed < choice.better_limit &&
          (choice.device == kNone || precedes(device, static_cast<std::size_t>(choice.device)))) {
        choice.better_limit = needed;
      }
    }
  }
  return choice;
}

bool GreedyPass::precedes(std::size_t a, std::size_t b) const {
  if (cost_[a] != cost_[b]) {
    return cost_[a] < cost_[b];
  }
  return memory_[a] != memory_[b] ? memory_[a] < memory_[b] : a < b;
}

void GreedyPass::add_to_device(std::size_t device, ShardCatalog::Kind kind) {
  const std::span<float> sum = encoding_sum(device);
  const std::span<const float> encoding = catalog_.encoding(kind);
  std::transform(sum.begin(), sum.end(), encoding.begin(), sum.begin(), std::plus<>());
  empty_[device] = false;
  memory_[device] += catalog_.bytes(kind);
  output_dim_sum_[device] += catalog_.output_dim(kind);
}

std::span<float> GreedyPass::encoding_sum(std::size_t device) {
  return std::span(encoding_sums_)
      .subspan(device * catalog_.encoding_size(), catalog_.encoding_size());
}

}  // namespace neuroshard
