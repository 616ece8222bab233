#pragma once

#include <cstddef>
#include <vector>

namespace neuroshard {

/// One affine layer in fp32: output = weights * input + bias.
///
/// The weights are kept in the order in which `apply` reads them. This is the only place where
/// network arithmetic happens, so a faster kernel goes here. The order of the additions is fixed:
/// the result does not depend on the width of the vector registers.
class AffineLayer {
 public:
  /// `weights` is [outputs][inputs], row by row; `bias` is [outputs]. All values must be finite.
  AffineLayer(const std::vector<float>& weights, std::vector<float> bias, std::size_t inputs);

  std::size_t inputs() const { return inputs_; }
  std::size_t outputs() const { return outputs_; }

  /// Room that `apply` needs for its output, at least `outputs()`.
  std::size_t padded_outputs() const;

  /// Reads `inputs()` floats and writes `padded_outputs()`, of which the first `outputs()` count.
  void apply(const float* input, float* output) const;

 private:
  static constexpr std::size_t kBlock = 32;  // outputs computed together by apply_blocks
  static constexpr std::size_t kLanes = 8;   // partial sums of one output in apply_rows

  // A layer with few outputs is computed row by row: blocks would be mostly padding.
  bool by_rows() const { return outputs_ < kLanes; }
  void apply_rows(const float* input, float* output) const;
  void apply_blocks(const float* input, float* output) const;

  std::size_t inputs_;
  std::size_t outputs_;
  std::vector<float> weights_;  // by_rows: [outputs][inputs], else [blocks][inputs][kBlock]
  std::vector<float> bias_;     // by_rows: [outputs], else [blocks][kBlock]
};

}  // namespace neuroshard
