#pragma once

#include <map>
#include <vector>

#include "network.hpp"

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
  std::size_t encoding_size() const { return table_.outputs(); }
  std::vector<int> device_counts() const;

  /// Throws std::invalid_argument where there are no networks for so many devices.
  const Communication& communication(int devices) const;

  /// Encoding of one shard, from its features.
  std::span<const float> encode(std::span<const float> features,
                                Network::Workspace& workspace) const;

  /// Compute cost of a device, from the sum of the encodings of its shards.
  float compute_cost(std::span<const float> encoding_sum, Network::Workspace& workspace) const {
    return set_.evaluate(encoding_sum, workspace).front();
  }

 private:
  Network table_;
  Network set_;
  std::map<int, Communication> communication_;  // by number of devices
};

}  // namespace neuroshard
