#include "affine_layer.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "kernels/kernels.hpp"

namespace neuroshard {

namespace {

bool all_finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(),
                     [](float value) { return std::isfinite(value); });
}

}  // namespace

AffineLayer::AffineLayer(const std::vector<float>& weights, std::vector<float> bias,
                         std::size_t inputs)
    : inputs_(inputs), bias_(std::move(bias)) {
  if (inputs_ == 0 || outputs() == 0) {
    throw std::invalid_argument("a layer needs at least one input and one output");
  }
  if (weights.size() != inputs_ * outputs()) {
    throw std::invalid_argument("the weights of a layer must have the shape [outputs, inputs]");
  }
  if (!all_finite(weights) || !all_finite(bias_)) {
    throw std::invalid_argument("the weights and biases of a layer must be finite numbers");
  }
  padded_bias_.assign(bias_.begin(), bias_.end());
  padded_bias_.resize(round_up(outputs(), Kernels::kTile));
  weights_.resize(padded_outputs() * inputs_);
  for (std::size_t output = 0; output < outputs(); ++output) {
    for (std::size_t input = 0; input < inputs_; ++input) {
      weights_[position(output, input)] = weights[output * inputs_ + input];
    }
  }
}

void AffineLayer::apply(const float* input, float* output, bool relu, Workspace& workspace) const {
  workspace.resize(std::max(workspace.size(), inputs_));
  const std::size_t used = kernels().used_inputs(input, inputs_, workspace.data());
  const float least = relu ? 0.0F : -std::numeric_limits<float>::infinity();
  kernels().affine(weights_.data(), padded_bias_.data(), least, input, workspace.data(), used,
                   output, inputs_, padded_outputs() / Kernels::kTile);
}

std::vector<float> AffineLayer::weights() const {
  std::vector<float> weights(outputs() * inputs_);
  for (std::size_t output = 0; output < outputs(); ++output) {
    for (std::size_t input = 0; input < inputs_; ++input) {
      weights[output * inputs_ + input] = weights_[position(output, input)];
    }
  }
  return weights;
}

std::size_t AffineLayer::position(std::size_t output, std::size_t input) const {
  const std::size_t tile = output / Kernels::kTile;
  return (tile * inputs_ + input) * Kernels::kTile + output % Kernels::kTile;
}

}  // namespace neuroshard
