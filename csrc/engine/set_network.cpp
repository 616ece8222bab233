#include "set_network.hpp"

#include <stdexcept>
#include <vector>

#include "kernels/kernels.hpp"

namespace neuroshard {

SetNetwork::SetNetwork(const Network& network)
    : first_(network.layers().front().weights(),
             std::vector<float>(network.layers().front().outputs()), network.inputs()) {
  if (network.outputs() != 1 || !network.mean().empty()) {
    throw std::invalid_argument("set: the network must have one output and no feature statistics");
  }
  const std::vector<AffineLayer>& layers = network.layers();
  empty_sums_.assign(layers.front().bias().begin(), layers.front().bias().end());
  empty_sums_.resize(sums_size());
  if (layers.size() == 2) {
    const std::vector<float> weights = layers.back().weights();
    dot_weights_.assign(weights.begin(), weights.end());
    dot_weights_.resize(sums_size());
    dot_bias_ = layers.back().bias().front();
  } else if (layers.size() > 2) {
    rest_.emplace(std::vector<AffineLayer>(layers.begin() + 1, layers.end()), std::vector<float>{},
                  std::vector<float>{});
  }
  AlignedVector<float> sums = empty_sums_;
  const AlignedVector<float> nothing(sums_size());
  Workspace workspace;
  empty_cost_ = add(sums.data(), nothing.data(), workspace);
}

float SetNetwork::add(float* sums, const float* contribution, Workspace& workspace) const {
  const std::size_t blocks = sums_size() / Kernels::kLanes;
  if (!dot_weights_.empty()) {
    return kernels().add_and_dot_relu(sums, contribution, dot_weights_.data(), blocks) + dot_bias_;
  }
  kernels().add(sums, contribution, blocks);
  if (!rest_) {
    return *sums;
  }
  workspace.activation_.assign(sums, sums + rest_->inputs());
  relu(workspace.activation_);
  return rest_->evaluate(workspace.activation_, workspace.network_).front();
}

}  // namespace neuroshard
