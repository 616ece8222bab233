#include "set_network.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

namespace neuroshard {

SetNetwork::SetNetwork(Network network)
    : network_(std::move(network)),
      first_(network_.layers().front().weights(),
             std::vector<float>(network_.layers().front().outputs()), network_.inputs()) {
  if (network_.outputs() != 1 || !network_.mean().empty()) {
    throw std::invalid_argument("set: the network must have one output and no feature statistics");
  }
  const std::vector<AffineLayer>& layers = network_.layers();
  const std::vector<float>& bias = layers.front().bias();
  empty_sums_.assign(bias.begin(), bias.end());
  empty_sums_.resize(round_up(bias.size(), Kernels::kBlock));
  if (layers.size() == 2) {
    const std::vector<float> weights = layers.back().weights();
    dot_weights_.assign(weights.begin(), weights.end());
    dot_weights_.resize(sums_size());
    dot_bias_ = layers.back().bias().front();
  } else if (layers.size() > 2) {
    rest_.emplace(std::vector<AffineLayer>(layers.begin() + 1, layers.end()), std::vector<float>{},
                  std::vector<float>{});
  }

  const AlignedVector<float> nothing(sums_size());
  AlignedVector<float> sums_after(sums_size());
  PerLane<const float*> sums{};
  PerLane<const float*> contribution{};
  PerLane<float*> after{};
  sums.fill(empty_sums_.data());
  contribution.fill(nothing.data());
  after.fill(sums_after.data());
  PerLane<float> cost{};
  Workspace workspace;
  add(sums, contribution, after, cost, workspace);
  empty_cost_ = cost[0];
}

void SetNetwork::contributions(const float* encodings, float* output, Workspace& workspace) const {
  workspace.activation_.resize(first_.padded_outputs() * kLanes);
  first_.apply(encodings, workspace.activation_.data(), /*relu=*/false, workspace.layer_);
  for (std::size_t lane = 0; lane < kLanes; ++lane, output += sums_size()) {
    for (std::size_t i = 0; i < first_.outputs(); ++i) {
      output[i] = workspace.activation_[i * kLanes + lane];
    }
    std::fill(output + first_.outputs(), output + sums_size(), 0.0F);
  }
}

void SetNetwork::add(const PerLane<const float*>& sums, const PerLane<const float*>& contribution,
                     const PerLane<float*>& after, PerLane<float>& cost,
                     Workspace& workspace) const {
  const float* weights = dot_weights_.empty() ? nullptr : dot_weights_.data();
  kernels().add(sums.data(), contribution.data(), after.data(), weights,
                sums_size() / Kernels::kBlock, cost.data());
  if (weights != nullptr) {
    for (float& value : cost) {
      value += dot_bias_;
    }
    return;
  }
  if (!rest_) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      cost[lane] = *after[lane];
    }
    return;
  }
  workspace.activation_.resize(rest_->inputs() * kLanes);
  for (std::size_t i = 0; i < rest_->inputs(); ++i) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      workspace.activation_[i * kLanes + lane] = std::max(after[lane][i], 0.0F);
    }
  }
  std::copy_n(rest_->evaluate(workspace.activation_.data(), workspace.network_), kLanes,
              cost.begin());
}

}  // namespace neuroshard
