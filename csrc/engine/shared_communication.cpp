#include "shared_communication.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace neuroshard {

namespace {

using Feature = SharedCommunication::Feature;

/// Columns `first` … `last` - 1 of the weights of a layer.
std::vector<float> columns(const AffineLayer& layer, std::size_t first, std::size_t last) {
  const std::vector<float> weights = layer.weights();
  std::vector<float> part;
  part.reserve(layer.outputs() * (last - first));
  for (std::size_t row = 0; row < layer.outputs(); ++row) {
    const auto begin = weights.begin() + static_cast<std::ptrdiff_t>(row * layer.inputs());
    part.insert(part.end(), begin + static_cast<std::ptrdiff_t>(first),
                begin + static_cast<std::ptrdiff_t>(last));
  }
  return part;
}

void check_shape(const Network& network, const std::string& name, std::size_t inputs) {
  if (network.inputs() != inputs) {
    throw std::invalid_argument(name + ": the network must have " + std::to_string(inputs) +
                                " inputs, it has " + std::to_string(network.inputs()));
  }
}

/// `head`, after it has been checked against `device`.
Network checked_head(Network head, const Network& device, const std::string& name) {
  check_shape(head, name + "_head", 3 * device.outputs());
  if (head.outputs() != 1 || !head.mean().empty()) {
    throw std::invalid_argument(name + "_head: the network must have one output and no statistics");
  }
  return head;
}

}  // namespace

SharedNetworks::SharedNetworks(Network device, Network head, std::size_t features, const char* name)
    : device_(std::move(device)),
      head_(checked_head(std::move(head), device_, name)),
      head_of_channels_(columns(head_.layers().front(), 0, channels()),
                        std::vector<float>(head_.layers().front().outputs()), channels()),
      head_of_all_(columns(head_.layers().front(), channels(), head_.inputs()),
                   head_.layers().front().bias(), 2 * channels()) {
  check_shape(device_, std::string(name) + "_device", features);
  const std::vector<AffineLayer>& layers = head_.layers();
  if (layers.size() > 1) {
    head_rest_.emplace(std::vector<AffineLayer>(layers.begin() + 1, layers.end()),
                       std::vector<float>{}, std::vector<float>{});
  }
}

SharedCommunication::SharedCommunication(Network forward_device, Network forward_head,
                                         Network backward_device, Network backward_head,
                                         std::int64_t devices_per_node, std::int64_t batch_size)
    : forward_(std::move(forward_device), std::move(forward_head), kForwardFeatures, "forward"),
      backward_(std::move(backward_device), std::move(backward_head), kBackwardFeatures,
                "backward"),
      devices_per_node_(devices_per_node),
      batch_size_(batch_size) {
  if (devices_per_node_ < 1) {
    throw std::invalid_argument("devices_per_node must be at least 1, got " +
                                std::to_string(devices_per_node_));
  }
  if (batch_size_ < 1) {
    throw std::invalid_argument("batch_size must be at least 1, got " +
                                std::to_string(batch_size_));
  }
}

SharedCosts::SharedCosts(const SharedCommunication& networks, int devices)
    : networks_(networks), devices_(static_cast<std::size_t>(devices)) {
  const SharedNetworks& forward = networks.forward();
  const SharedNetworks& backward = networks.backward();
  const std::size_t channels = std::max(forward.channels(), backward.channels());
  const std::size_t hidden =
      std::max(forward.head_of_all().padded_outputs(), backward.head_of_all().padded_outputs());
  features_.resize(devices_ * SharedCommunication::kForwardFeatures * kLanes);
  channels_.resize(devices_ * channels * kLanes);
  pooled_.resize(2 * channels * kLanes);
  of_all_.resize(hidden * kLanes);
  hidden_.resize(hidden * kLanes);
}

void SharedCosts::backward(const float* output_dims, float* costs) {
  set_sent(output_dims);
  evaluate(networks_.backward(), costs);
}

void SharedCosts::forward(const float* output_dims, const float* starts, float* costs) {
  set_sent(output_dims);
  PerLane<float> last{};
  for (std::size_t i = 0; i < devices_ * kLanes; ++i) {
    last[i % kLanes] = std::max(last[i % kLanes], starts[i]);
  }
  for (std::size_t device = 0; device < devices_; ++device) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      features(device)[SharedCommunication::kWait * kLanes + lane] =
          last[lane] - starts[device * kLanes + lane];
    }
  }
  evaluate(networks_.forward(), costs);
}

/// Fills in all features but the wait.
void SharedCosts::set_sent(const float* output_dims) {
  constexpr double kBytesPerMB = 1e6;
  // What one output dim exchanges with one peer: the peer's share of the batch in fp32.
  const double megabytes = static_cast<double>(networks_.batch_size()) * sizeof(float) /
                           static_cast<double>(devices_) / kBytesPerMB;
  const auto per_dim = static_cast<float>(megabytes);
  const auto sum = [&](std::size_t first, std::size_t last) {
    PerLane<float> total{};
    for (std::size_t i = first * kLanes; i < last * kLanes; ++i) {
      total[i % kLanes] += output_dims[i];
    }
    return total;
  };
  const PerLane<float> all = sum(0, devices_);
  const auto node_size = static_cast<std::size_t>(
      std::min(networks_.devices_per_node(), static_cast<std::int64_t>(devices_)));
  for (std::size_t first = 0; first < devices_; first += node_size) {
    const std::size_t last = std::min(first + node_size, devices_);
    const PerLane<float> node = sum(first, last);
    const auto inside = static_cast<float>(last - first - 1);
    const auto outside = static_cast<float>(devices_ - (last - first));
    for (std::size_t device = first; device < last; ++device) {
      const float* dims = output_dims + device * kLanes;
      float* of_device = features(device);
      const auto set = [&](Feature feature, auto value) {
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
          of_device[feature * kLanes + lane] = value(lane);
        }
      };
      set(Feature::kSentInside, [&](auto lane) { return per_dim * inside * dims[lane]; });
      set(Feature::kSentOutside, [&](auto lane) { return per_dim * outside * dims[lane]; });
      set(Feature::kReceivedInside, [&](auto lane) { return per_dim * (node[lane] - dims[lane]); });
      set(Feature::kReceivedOutside, [&](auto lane) { return per_dim * (all[lane] - node[lane]); });
      set(Feature::kPeersInside, [&](auto) { return inside; });
      set(Feature::kPeersOutside, [&](auto) { return outside; });
      set(Feature::kLogDevices,
          [log = std::log2(static_cast<float>(devices_))](auto) { return log; });
    }
  }
}

void SharedCosts::evaluate(const SharedNetworks& networks, float* costs) {
  const std::size_t size = networks.channels() * kLanes;  // of the channels of a device
  float* const maximum = pooled_.data();
  float* const mean = pooled_.data() + size;
  std::fill_n(maximum, size, -std::numeric_limits<float>::infinity());
  std::fill_n(mean, size, 0.0F);
  for (std::size_t device = 0; device < devices_; ++device) {
    float* const channels = channels_.data() + device * size;
    std::copy_n(networks.device().evaluate(features(device), network_workspace_), size, channels);
    for (std::size_t i = 0; i < size; ++i) {
      maximum[i] = std::max(maximum[i], channels[i]);
      mean[i] += channels[i];
    }
  }
  const auto devices = static_cast<float>(devices_);
  for (std::size_t i = 0; i < size; ++i) {
    mean[i] /= devices;
  }
  const bool is_last = !networks.head_rest();
  networks.head_of_all().apply(pooled_.data(), of_all_.data(), /*relu=*/false, layer_workspace_);
  for (std::size_t device = 0; device < devices_; ++device) {
    networks.head_of_channels().apply(channels_.data() + device * size, hidden_.data(),
                                      /*relu=*/false, layer_workspace_);
    const std::size_t hidden = networks.head_of_all().outputs() * kLanes;
    for (std::size_t i = 0; i < hidden; ++i) {
      const float value = hidden_[i] + of_all_[i];
      hidden_[i] = is_last ? value : std::max(value, 0.0F);
    }
    const float* cost = is_last
                            ? hidden_.data()
                            : networks.head_rest()->evaluate(hidden_.data(), network_workspace_);
    std::copy_n(cost, kLanes, costs + device * kLanes);
  }
}

std::size_t SharedCosts::multiply_adds() const {
  std::size_t sum = 0;
  for (const SharedNetworks* networks : {&networks_.forward(), &networks_.backward()}) {
    const AffineLayer& of_all = networks->head_of_all();
    const std::size_t shared = of_all.inputs() * of_all.outputs();
    sum += shared + devices_ * (networks->device().multiply_adds() +
                                networks->head().multiply_adds() - shared);
  }
  return sum;
}

}  // namespace neuroshard
