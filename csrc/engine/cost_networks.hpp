#pragma once

#include <map>
#include <vector>

#include "network.hpp"
#include "set_network.hpp"

namespace neuroshard {

/// The three cost networks of the method; costs are in milliseconds.
///
/// Compute: each shard's features go through `table`, ReLU also after its last layer; the encodings
/// of the shards on a device are summed and the sum goes through `set`, which gives one number.
/// Communication: for each number of devices a pair of networks, see `Communication`.
class CostNetworks {
 public:
  struct Communication {
    Network forward;   // [output dims, relative start times] -> cost of each device
    Network backward;  // [output dims] -> cost of each device
  };

  CostNetworks(Network table, Network set, std::map<int, Network> forward,
               std::map<int, Network> backward);

  std::size_t features() const { return table_.inputs(); }
  std::vector<int> device_counts() const;

  /// Throws std::invalid_argument where there are no networks for so many devices.
  const Communication& communication(int devices) const;

  /// From the features of a shard to its encoding, before the last ReLU.
  const Network& table() const { return table_; }

  /// From the encodings of the shards on a device to its compute cost.
  const SetNetwork& set() const { return set_; }

  /// Encodings [encoding][kLanes] of shards with features [features][kLanes]; valid until
  /// `workspace` is used again.
  const float* encode(const float* features, Network::Workspace& workspace) const;

 private:
  Network table_;
  SetNetwork set_;
  std::map<int, Communication> communication_;  // by number of devices
};

}  // namespace neuroshard
