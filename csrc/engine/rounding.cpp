#include "rounding.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace neuroshard {

namespace {

constexpr double kUnit = 0x1p-24;       // of fp32, rounding to nearest
constexpr double kDenormal = 0x1p-149;  // the error of an operation whose result underflows

}  // namespace

double rounding_factor(double terms) {
  const double share = terms * kUnit;
  return share < 0.5 ? share / (1.0 - share) : std::numeric_limits<double>::infinity();
}

std::vector<Rounded> rounded(const AffineLayer& layer, const std::vector<Rounded>& inputs) {
  const std::vector<float> weights = layer.weights();
  // A product, as many additions as there are inputs, and one more in case they are added in parts.
  const double factor = rounding_factor(static_cast<double>(inputs.size() + 3));
  std::vector<Rounded> outputs(layer.outputs());
  for (std::size_t output = 0; output < outputs.size(); ++output) {
    const auto row = std::span(weights).subspan(output * inputs.size(), inputs.size());
    double magnitude = std::abs(static_cast<double>(layer.bias()[output]));
    double error = 0.0;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const double weight = std::abs(static_cast<double>(row[i]));
      magnitude += weight * inputs[i].magnitude;
      error += weight * inputs[i].error + kDenormal;
    }
    outputs[output] = {.magnitude = magnitude, .error = error + factor * (magnitude + error)};
  }
  return outputs;
}

std::vector<Rounded> rounded(const Network& network, std::vector<Rounded> inputs) {
  for (std::size_t i = 0; i < network.mean().size(); ++i) {
    const double mean = std::abs(static_cast<double>(network.mean()[i]));
    const auto deviation = static_cast<double>(network.deviation()[i]);
    const double magnitude = (inputs[i].magnitude + mean) / deviation;
    const double error = inputs[i].error / deviation + kDenormal / deviation;
    inputs[i] = {.magnitude = magnitude,
                 .error = error + rounding_factor(3.0) * (magnitude + error) + kDenormal};
  }
  // A ReLU makes neither the magnitude nor the error larger.
  for (const AffineLayer& layer : network.layers()) {
    inputs = rounded(layer, inputs);
  }
  return inputs;
}

std::vector<Range> ranges(const AffineLayer& layer, const std::vector<Range>& inputs) {
  const std::vector<float> weights = layer.weights();
  std::vector<Range> outputs(layer.outputs());
  for (std::size_t output = 0; output < outputs.size(); ++output) {
    const auto row = std::span(weights).subspan(output * inputs.size(), inputs.size());
    const auto bias = static_cast<double>(layer.bias()[output]);
    Range range{.low = bias, .high = bias};
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto weight = static_cast<double>(row[i]);
      range.low += weight * (weight > 0.0 ? inputs[i].low : inputs[i].high);
      range.high += weight * (weight > 0.0 ? inputs[i].high : inputs[i].low);
    }
    outputs[output] = range;
  }
  return outputs;
}

std::vector<Range> ranges(const Network& network, std::vector<Range> inputs) {
  for (std::size_t i = 0; i < network.mean().size(); ++i) {
    const auto mean = static_cast<double>(network.mean()[i]);
    const auto deviation = static_cast<double>(network.deviation()[i]);
    inputs[i] = {.low = (inputs[i].low - mean) / deviation,
                 .high = (inputs[i].high - mean) / deviation};
  }
  for (std::size_t i = 0; i < network.layers().size(); ++i) {
    inputs = ranges(network.layers()[i], inputs);
    if (i + 1 < network.layers().size()) {
      for (Range& range : inputs) {
        range = {.low = std::max(range.low, 0.0), .high = std::max(range.high, 0.0)};
      }
    }
  }
  return inputs;
}

}  // namespace neuroshard
