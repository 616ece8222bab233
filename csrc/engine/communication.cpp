#include "communication.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "aligned.hpp"
#include "kernels/kernels.hpp"

namespace neuroshard {

namespace {

class PerCountCosts : public CommunicationCosts {
 public:
  PerCountCosts(const PerCountCommunication::Networks& networks, std::size_t devices)
      : networks_(networks), size_(devices * kLanes), input_(2 * size_) {}

  void backward(const float* output_dims, float* costs) override {
    std::copy_n(networks_.backward.evaluate(output_dims, workspace_), size_, costs);
  }

  void forward(const float* output_dims, const float* starts, float* costs) override {
    std::copy_n(output_dims, size_, input_.begin());
    std::copy_n(starts, size_, input_.begin() + static_cast<std::ptrdiff_t>(size_));
    std::copy_n(networks_.forward.evaluate(input_.data(), workspace_), size_, costs);
  }

  std::size_t multiply_adds() const override {
    return networks_.forward.multiply_adds() + networks_.backward.multiply_adds();
  }

 private:
  const PerCountCommunication::Networks& networks_;
  const std::size_t size_;      // [devices][kLanes]
  AlignedVector<float> input_;  // [output dims, start times][devices][kLanes]
  Network::Workspace workspace_;
};

class SharedCommunicationCosts : public CommunicationCosts {
 public:
  SharedCommunicationCosts(const SharedCommunication& networks, int devices)
      : costs_(networks, devices) {}

  void backward(const float* output_dims, float* costs) override {
    costs_.backward(output_dims, costs);
  }
  void forward(const float* output_dims, const float* starts, float* costs) override {
    costs_.forward(output_dims, starts, costs);
  }
  std::size_t multiply_adds() const override { return costs_.multiply_adds(); }

 private:
  SharedCosts costs_;
};

void check_shape(const Network& network, const std::string& name, std::size_t inputs,
                 std::size_t outputs) {
  if (network.inputs() != inputs || network.outputs() != outputs) {
    throw std::invalid_argument(name + ": the network must have " + std::to_string(inputs) +
                                " inputs and " + std::to_string(outputs) + " outputs, it has " +
                                std::to_string(network.inputs()) + " and " +
                                std::to_string(network.outputs()));
  }
}

}  // namespace

PerCountCommunication::PerCountCommunication(std::map<int, Network> forward,
                                             std::map<int, Network> backward) {
  for (auto& [devices, network] : forward) {
    const std::string suffix = std::string("[") + std::to_string(devices) + "]";
    if (devices < 1) {
      throw std::invalid_argument("forward" + suffix +
                                  ": the number of devices must be at least 1");
    }
    const auto count = static_cast<std::size_t>(devices);
    const auto pair = backward.find(devices);
    if (pair == backward.end()) {
      throw std::invalid_argument("backward" + suffix +
                                  " is missing: forward and backward come in pairs");
    }
    check_shape(network, "forward" + suffix, 2 * count, count);
    check_shape(pair->second, "backward" + suffix, count, count);
    networks_.emplace(devices, Networks{std::move(network), std::move(pair->second)});
    backward.erase(pair);
  }
  if (!backward.empty()) {
    throw std::invalid_argument("forward[" + std::to_string(backward.begin()->first) +
                                "] is missing: forward and backward come in pairs");
  }
}

std::vector<int> PerCountCommunication::device_counts() const {
  std::vector<int> counts;
  counts.reserve(networks_.size());
  for (const auto& entry : networks_) {
    counts.push_back(entry.first);
  }
  return counts;
}

const PerCountCommunication::Networks& PerCountCommunication::networks(int devices) const {
  const auto found = networks_.find(devices);
  if (found == networks_.end()) {
    std::string known;
    for (const auto& entry : networks_) {
      known += known.empty() ? "" : ", ";
      known += std::to_string(entry.first);
    }
    throw std::invalid_argument("the cost networks are not made for " + std::to_string(devices) +
                                " devices, only for: " + (known.empty() ? "none" : known));
  }
  return found->second;
}

std::unique_ptr<CommunicationCosts> CommunicationCosts::make(const CommunicationNetworks& networks,
                                                             int devices) {
  if (const auto* shared = std::get_if<SharedCommunication>(&networks)) {
    return std::make_unique<SharedCommunicationCosts>(*shared, devices);
  }
  const auto& per_count = std::get<PerCountCommunication>(networks);
  return std::make_unique<PerCountCosts>(per_count.networks(devices),
                                         static_cast<std::size_t>(devices));
}

}  // namespace neuroshard
