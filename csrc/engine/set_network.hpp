#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "affine_layer.hpp"
#include "aligned.hpp"
#include "network.hpp"

namespace neuroshard {

/// The network that gives the compute cost of a device from the sum of its shards' encodings.
///
/// Its first layer is affine, so the layer's output for a sum of encodings is the sum of what each
/// of them contributes to it. The contribution of every kind of shard is computed once; the cost of
/// one more shard on a device is then one vector addition and what follows the first layer.
class SetNetwork {
 public:
  /// Buffers of one thread.
  class Workspace {
   private:
    friend class SetNetwork;
    AlignedVector<float> activation_;
    Network::Workspace network_;
  };

  /// `network` has one output and takes its inputs as they are. Throws std::invalid_argument.
  explicit SetNetwork(const Network& network);

  std::size_t inputs() const { return first_.inputs(); }

  /// Floats of a contribution, and of a sum of contributions.
  std::size_t sums_size() const { return first_.padded_outputs(); }

  /// Writes what a shard with this encoding contributes, `sums_size()` floats.
  void contribution(std::span<const float> encoding, float* output) const {
    first_.apply(encoding.data(), output);
  }

  /// The sums of a device that holds nothing.
  std::span<const float> empty_sums() const { return empty_sums_; }

  /// Cost of a device that holds nothing, in ms.
  float empty_cost() const { return empty_cost_; }

  /// Adds a contribution to the sums of a device; gives its cost in ms.
  float add(float* sums, const float* contribution, Workspace& workspace) const;

 private:
  AffineLayer first_;                // without its bias
  AlignedVector<float> empty_sums_;  // its bias
  // What follows the first layer: nothing, or a ReLU and a dot product, or a ReLU and more layers.
  AlignedVector<float> dot_weights_;
  float dot_bias_ = 0.0F;
  std::optional<Network> rest_;
  float empty_cost_ = 0.0F;
};

}  // namespace neuroshard
