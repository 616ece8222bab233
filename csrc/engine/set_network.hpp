#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "affine_layer.hpp"
#include "aligned.hpp"
#include "kernels/kernels.hpp"
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
    AffineLayer::Workspace layer_;
  };

  /// `network` has one output and takes its inputs as they are. Throws std::invalid_argument.
  explicit SetNetwork(Network network);

  /// As the constructor takes it.
  const Network& network() const { return network_; }

  /// Floats of a contribution, and of a sum of contributions.
  std::size_t sums_size() const { return empty_sums_.size(); }

  /// Writes the contributions of kLanes shards with these encodings, [encoding][kLanes]:
  /// [kLanes][sums_size()].
  void contributions(const float* encodings, float* output, Workspace& workspace) const;

  /// The sums of a device that holds nothing.
  std::span<const float> empty_sums() const { return empty_sums_; }

  /// Cost of a device that holds nothing, in ms.
  float empty_cost() const { return empty_cost_; }

  /// For each of kLanes devices `after` = `sums` + `contribution`, and what the device costs then,
  /// in ms. `after` may be `sums`.
  void add(const PerLane<const float*>& sums, const PerLane<const float*>& contribution,
           const PerLane<float*>& after, PerLane<float>& cost, Workspace& workspace) const;

 private:
  Network network_;
  AffineLayer first_;                // without its bias
  AlignedVector<float> empty_sums_;  // its bias
  // What follows the first layer: nothing, or a ReLU and a dot product, or a ReLU and more layers.
  AlignedVector<float> dot_weights_;
  float dot_bias_ = 0.0F;
  std::optional<Network> rest_;
  float empty_cost_ = 0.0F;
};

}  // namespace neuroshard
