#include "cost_networks.hpp"

#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/kernels.hpp"

namespace neuroshard {

namespace {

void check_shape(const Network& network, const std::string& name, std::size_t inputs,
                 std::size_t outputs) {
  if (network.inputs() != inputs || network.outputs() != outputs) {
    throw std::invalid_argument(name + ": the network must have " + std::to_string(inputs) +
                                " inputs and " + std::to_string(outputs) + " outputs, it has " +
                                std::to_string(network.inputs()) + " and " +
                                std::to_string(network.outputs()));
  }
}

Network checked_set(Network set, const Network& table) {
  check_shape(set, "set", table.outputs(), 1);
  return set;
}

}  // namespace

CostNetworks::CostNetworks(Network table, Network set, std::map<int, Network> forward,
                           std::map<int, Network> backward)
    : table_(std::move(table)), set_(checked_set(std::move(set), table_)) {
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
    communication_.emplace(devices, Communication{std::move(network), std::move(pair->second)});
    backward.erase(pair);
  }
  if (!backward.empty()) {
    throw std::invalid_argument("forward[" + std::to_string(backward.begin()->first) +
                                "] is missing: forward and backward come in pairs");
  }
}

std::vector<int> CostNetworks::device_counts() const {
  std::vector<int> counts;
  counts.reserve(communication_.size());
  for (const auto& entry : communication_) {
    counts.push_back(entry.first);
  }
  return counts;
}

const CostNetworks::Communication& CostNetworks::communication(int devices) const {
  const auto found = communication_.find(devices);
  if (found == communication_.end()) {
    std::string known;
    for (const auto& entry : communication_) {
      known += known.empty() ? "" : ", ";
      known += std::to_string(entry.first);
    }
    throw std::invalid_argument("the cost networks are not made for " + std::to_string(devices) +
                                " devices, only for: " + (known.empty() ? "none" : known));
  }
  return found->second;
}

const float* CostNetworks::encode(const float* features, Network::Workspace& workspace) const {
  return table_.evaluate(features, workspace, /*relu_at_end=*/true);
}

}  // namespace neuroshard
