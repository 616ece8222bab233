#include "network.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "kernels/kernels.hpp"

namespace neuroshard {

Network::Network(std::vector<AffineLayer> layers, std::vector<float> mean,
                 std::vector<float> deviation)
    : layers_(std::move(layers)), mean_(std::move(mean)), deviation_(std::move(deviation)) {
  if (layers_.empty()) {
    throw std::invalid_argument("layers: a network needs at least one layer");
  }
  for (std::size_t i = 1; i < layers_.size(); ++i) {
    if (layers_[i].inputs() != layers_[i - 1].outputs()) {
      throw std::invalid_argument(
          "layers: each layer must take as many inputs as the one before it gives");
    }
  }
  if (mean_.size() != deviation_.size() || (!mean_.empty() && mean_.size() != inputs())) {
    throw std::invalid_argument(
        "feature_mean and feature_std must both have one number for each input of the network");
  }
  for (std::size_t i = 0; i < mean_.size(); ++i) {
    if (!std::isfinite(mean_[i])) {
      throw std::invalid_argument("feature_mean must hold finite numbers");
    }
    if (!std::isfinite(deviation_[i]) || deviation_[i] <= 0.0F) {
      throw std::invalid_argument("feature_std must hold finite numbers above 0");
    }
  }
  buffer_size_ = inputs() * kLanes;
  for (const AffineLayer& layer : layers_) {
    buffer_size_ = std::max(buffer_size_, layer.padded_outputs() * kLanes);
  }
}

std::size_t Network::multiply_adds() const {
  std::size_t sum = 0;
  for (const AffineLayer& layer : layers_) {
    sum += layer.inputs() * layer.outputs();
  }
  return sum;
}

float* Network::evaluate(const float* input, Workspace& workspace, bool relu_at_end) const {
  if (workspace.front_.size() < buffer_size_) {
    workspace.front_.resize(buffer_size_);
    workspace.back_.resize(buffer_size_);
  }
  float* front = workspace.front_.data();
  float* back = workspace.back_.data();
  const float* activation = input;
  if (!mean_.empty()) {
    for (std::size_t i = 0; i < mean_.size(); ++i) {
      for (std::size_t lane = i * kLanes; lane < (i + 1) * kLanes; ++lane) {
        front[lane] = (input[lane] - mean_[i]) / deviation_[i];
      }
    }
    activation = front;
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    layers_[i].apply(activation, back, relu_at_end || i + 1 < layers_.size(), workspace.layer_);
    std::swap(front, back);
    activation = front;
  }
  return front;
}

}  // namespace neuroshard
