#include "cost_networks.hpp"

#include <stdexcept>
#include <string>
#include <utility>

namespace neuroshard {

namespace {

Network checked_set(Network set, const Network& table) {
  if (set.inputs() != table.outputs() || set.outputs() != 1) {
    throw std::invalid_argument("set: the network must have " + std::to_string(table.outputs()) +
                                " inputs and 1 outputs, it has " + std::to_string(set.inputs()) +
                                " and " + std::to_string(set.outputs()));
  }
  return set;
}

}  // namespace

CostNetworks::CostNetworks(Network table, Network set, CommunicationNetworks communication)
    : table_(std::move(table)),
      set_(checked_set(std::move(set), table_)),
      communication_(std::move(communication)) {}

const float* CostNetworks::encode(const float* features, Network::Workspace& workspace) const {
  return table_.evaluate(features, workspace, /*relu_at_end=*/true);
}

}  // namespace neuroshard
