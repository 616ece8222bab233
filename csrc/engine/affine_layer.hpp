#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "aligned.hpp"

namespace neuroshard {

/// One affine layer in fp32: output = weights * input + bias, for kLanes inputs at a time.
///
/// The inputs are added up in their order, starting from the bias. Those that are 0 in all lanes,
/// as many are that come from a ReLU, are left out. That changes no result, whatever the other
/// lanes hold: weights are finite, so such an input adds a 0, which can turn -0 into 0 and nothing
/// else, and no comparison tells these two apart.
class AffineLayer {
 public:
  /// `weights` is [outputs][inputs], row by row; `bias` is [outputs]. All values must be finite.
  AffineLayer(const std::vector<float>& weights, std::vector<float> bias, std::size_t inputs);

  std::size_t inputs() const { return inputs_; }
  std::size_t outputs() const { return bias_.size(); }

  /// Outputs that `apply` writes, at least `outputs()`; what exceeds these is padding.
  std::size_t padded_outputs() const { return padded_bias_.size(); }

  /// Room that `apply` works in.
  using Workspace = std::vector<std::int32_t>;

  /// Reads [inputs()][kLanes] floats and writes [padded_outputs()][kLanes]; with `relu`, 0 for
  /// those below 0.
  void apply(const float* input, float* output, bool relu, Workspace& workspace) const;

  /// As the constructor takes them.
  std::vector<float> weights() const;
  const std::vector<float>& bias() const { return bias_; }

 private:
  std::size_t position(std::size_t output, std::size_t input) const;

  std::size_t inputs_;
  AlignedVector<float> weights_;  // in the order in which the kernel reads them
  AlignedVector<float> padded_bias_;
  std::vector<float> bias_;
};

}  // namespace neuroshard
