#pragma once

#include <cstddef>
#include <vector>

#include "affine_layer.hpp"
#include "aligned.hpp"

namespace neuroshard {

/// A multi-layer perceptron in fp32: standardised inputs, ReLU on the hidden layers, linear output.
class Network {
 public:
  /// Buffers of one thread for the activations of any network.
  class Workspace {
   private:
    friend class Network;
    AlignedVector<float> front_, back_;
    AffineLayer::Workspace layer_;
  };

  /// The first layer sees `(input - mean) / deviation`; both are empty where inputs are used as
  /// they are.
  Network(std::vector<AffineLayer> layers, std::vector<float> mean, std::vector<float> deviation);

  std::size_t inputs() const { return layers_.front().inputs(); }
  std::size_t outputs() const { return layers_.back().outputs(); }

  /// Of one evaluation.
  std::size_t multiply_adds() const;

  /// As the constructor takes them.
  const std::vector<AffineLayer>& layers() const { return layers_; }
  const std::vector<float>& mean() const { return mean_; }
  const std::vector<float>& deviation() const { return deviation_; }

  /// Outputs [outputs()][kLanes] for inputs [inputs()][kLanes]; valid until `workspace` is used
  /// again. With `relu_at_end` the outputs too go through a ReLU.
  float* evaluate(const float* input, Workspace& workspace, bool relu_at_end = false) const;

 private:
  std::vector<AffineLayer> layers_;
  std::vector<float> mean_;       // [inputs] or empty
  std::vector<float> deviation_;  // [inputs] or empty, not 0
  std::size_t buffer_size_;       // floats that the widest activation takes
};

}  // namespace neuroshard
