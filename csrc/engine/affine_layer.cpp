#include "affine_layer.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace neuroshard {

namespace {

bool all_finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(),
                     [](float value) { return std::isfinite(value); });
}

}  // namespace

AffineLayer::AffineLayer(const std::vector<float>& weights, std::vector<float> bias,
                         std::size_t inputs)
    : inputs_(inputs), outputs_(bias.size()), bias_(std::move(bias)) {
  if (inputs_ == 0 || outputs_ == 0) {
    throw std::invalid_argument("a layer needs at least one input and one output");
  }
  if (weights.size() != inputs_ * outputs_) {
    throw std::invalid_argument("the weights of a layer must have the shape [outputs, inputs]");
  }
  if (!all_finite(weights) || !all_finite(bias_)) {
    throw std::invalid_argument("the weights and biases of a layer must be finite numbers");
  }
  if (by_rows()) {
    weights_ = weights;
    return;
  }
  bias_.resize(padded_outputs());
  weights_.resize(padded_outputs() * inputs_);
  for (std::size_t output = 0; output < outputs_; ++output) {
    const std::size_t block = output / kBlock;
    for (std::size_t input = 0; input < inputs_; ++input) {
      weights_[(block * inputs_ + input) * kBlock + output % kBlock] =
          weights[output * inputs_ + input];
    }
  }
}

std::size_t AffineLayer::padded_outputs() const {
  return by_rows() ? outputs_ : (outputs_ + kBlock - 1) / kBlock * kBlock;
}

void AffineLayer::apply(const float* input, float* output) const {
  if (by_rows()) {
    apply_rows(input, output);
  } else {
    apply_blocks(input, output);
  }
}

void AffineLayer::apply_rows(const float* input, float* output) const {
  for (std::size_t row = 0; row < outputs_; ++row) {
    const float* weights = weights_.data() + row * inputs_;
    float partial[kLanes] = {};
    std::size_t i = 0;
    for (; i + kLanes <= inputs_; i += kLanes) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        partial[lane] += weights[i + lane] * input[i + lane];
      }
    }
    float sum = bias_[row];
    for (; i < inputs_; ++i) {
      sum += weights[i] * input[i];
    }
    for (const float part : partial) {
      sum += part;
    }
    output[row] = sum;
  }
}

void AffineLayer::apply_blocks(const float* input, float* output) const {
  const float* weights = weights_.data();
  for (std::size_t first = 0; first < bias_.size(); first += kBlock) {
    float sums[kBlock];  // stays in registers
    std::copy_n(bias_.data() + first, kBlock, sums);
    for (std::size_t i = 0; i < inputs_; ++i, weights += kBlock) {
      for (std::size_t lane = 0; lane < kBlock; ++lane) {
        sums[lane] += weights[lane] * input[i];
      }
    }
    std::copy_n(sums, kBlock, output + first);
  }
}

}  // namespace neuroshard
