#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "affine_layer.hpp"
#include "aligned.hpp"
#include "kernels/kernels.hpp"
#include "network.hpp"

namespace neuroshard {

/// One all-to-all in networks that serve any number of devices. No cost depends on how the devices
/// of a node are numbered, nor nodes.
///
/// What a device sends and receives goes through the network `device`; the channels that this
/// gives, their maximum over all devices and their mean go through the network `head`, which gives
/// the device's cost.
class SharedNetworks {
 public:
  /// `device`: features -> channels; `head`: [channels, their maximum, their mean] -> cost in ms.
  /// `name` is for errors: throws std::invalid_argument where the shapes do not fit.
  SharedNetworks(Network device, Network head, std::size_t features, const char* name);

  const Network& device() const { return device_; }
  const Network& head() const { return head_; }
  std::size_t channels() const { return device_.outputs(); }

  /// The first layer of the head in two parts, one for the channels and one, which is the same for
  /// all devices, for maximum and mean and with the bias.
  const AffineLayer& head_of_channels() const { return head_of_channels_; }
  const AffineLayer& head_of_all() const { return head_of_all_; }

  /// What follows the first layer of the head.
  const std::optional<Network>& head_rest() const { return head_rest_; }

 private:
  Network device_;
  Network head_;
  AffineLayer head_of_channels_;
  AffineLayer head_of_all_;
  std::optional<Network> head_rest_;
};

/// Networks for the communication of any number of devices, which fill nodes in their order.
class SharedCommunication {
 public:
  /// What the networks know of a device. MB are 10^6 bytes.
  enum Feature : std::uint8_t {
    kSentInside,       // MB to the peers in its node
    kSentOutside,      // MB to other nodes
    kReceivedInside,   // MB
    kReceivedOutside,  // MB
    kPeersInside,
    kPeersOutside,
    kLogDevices,  // base 2
    kBackwardFeatures,
    kWait = kBackwardFeatures,  // ms until the last device starts
    kForwardFeatures
  };

  /// `batch_size`: samples of all devices together. Throws std::invalid_argument.
  SharedCommunication(Network forward_device, Network forward_head, Network backward_device,
                      Network backward_head, std::int64_t devices_per_node,
                      std::int64_t batch_size);

  const SharedNetworks& forward() const { return forward_; }
  const SharedNetworks& backward() const { return backward_; }
  std::int64_t devices_per_node() const { return devices_per_node_; }
  std::int64_t batch_size() const { return batch_size_; }

 private:
  SharedNetworks forward_;
  SharedNetworks backward_;
  std::int64_t devices_per_node_;
  std::int64_t batch_size_;
};

/// Evaluates the shared networks for kLanes plans on so many devices at once. One object serves one
/// thread.
class SharedCosts {
 public:
  SharedCosts(const SharedCommunication& networks, int devices);

  /// Writes costs, ms, for output dims, fp32 numbers a sample, and for forward start times, ms;
  /// all [devices][kLanes].
  void backward(const float* output_dims, float* costs);
  void forward(const float* output_dims, const float* starts, float* costs);

  /// Multiply-adds of both for one plan.
  std::size_t multiply_adds() const;

 private:
  void set_sent(const float* output_dims);
  void evaluate(const SharedNetworks& networks, float* costs);
  float* features(std::size_t device) {
    return features_.data() + device * SharedCommunication::kForwardFeatures * kLanes;
  }

  const SharedCommunication& networks_;
  const std::size_t devices_;
  Network::Workspace network_workspace_;
  AffineLayer::Workspace layer_workspace_;
  AlignedVector<float> features_;  // [devices][kForwardFeatures][kLanes]
  AlignedVector<float> channels_;  // [devices][channels][kLanes]
  AlignedVector<float> pooled_;    // [maximum of channels, mean of channels][kLanes]
  AlignedVector<float> of_all_;    // first layer of the head, part of maximum and mean
  AlignedVector<float> hidden_;    // first layer of the head
};

}  // namespace neuroshard
