#pragma once

#include <cstddef>

#include "communication.hpp"
#include "network.hpp"
#include "set_network.hpp"

namespace neuroshard {

/// The three cost networks of the method; costs are in milliseconds.
///
/// Compute: each shard's features go through `table`, ReLU also after its last layer; the encodings
/// of the shards on a device are summed and the sum goes through `set`, which gives one number.
/// Communication: both all-to-alls, see CommunicationNetworks.
class CostNetworks {
 public:
  CostNetworks(Network table, Network set, CommunicationNetworks communication);

  std::size_t features() const { return table_.inputs(); }

  const CommunicationNetworks& communication() const { return communication_; }

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
  CommunicationNetworks communication_;
};

}  // namespace neuroshard
