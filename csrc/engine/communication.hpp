#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <variant>
#include <vector>

#include "network.hpp"
#include "shared_communication.hpp"

namespace neuroshard {

/// A forward and a backward network for each number of devices, which take the devices in their
/// order: the published kind.
class PerCountCommunication {
 public:
  struct Networks {
    Network forward;   // [output dims, relative start times] -> cost of each device
    Network backward;  // [output dims] -> cost of each device
  };

  /// By number of devices. Throws std::invalid_argument where a network does not suit its number
  /// or has no counterpart.
  PerCountCommunication(std::map<int, Network> forward, std::map<int, Network> backward);

  std::vector<int> device_counts() const;

  /// Throws std::invalid_argument where there are no networks for so many devices.
  const Networks& networks(int devices) const;

 private:
  std::map<int, Networks> networks_;
};

using CommunicationNetworks = std::variant<PerCountCommunication, SharedCommunication>;

/// Predicts both all-to-alls of kLanes plans at once. One object serves one thread and keeps a
/// reference to the networks.
class CommunicationCosts {
 public:
  /// Throws std::invalid_argument where the networks are not made for so many devices.
  static std::unique_ptr<CommunicationCosts> make(const CommunicationNetworks& networks,
                                                  int devices);
  CommunicationCosts() = default;
  CommunicationCosts(const CommunicationCosts&) = delete;
  CommunicationCosts(CommunicationCosts&&) = delete;
  CommunicationCosts& operator=(const CommunicationCosts&) = delete;
  CommunicationCosts& operator=(CommunicationCosts&&) = delete;
  virtual ~CommunicationCosts() = default;

  /// Costs of the backward all-to-all, ms, of devices that send `output_dims`, fp32 numbers a
  /// sample; both [devices][kLanes].
  virtual void backward(const float* output_dims, float* costs) = 0;

  /// The same of the forward one, where devices are ready after `starts`, ms, [devices][kLanes].
  virtual void forward(const float* output_dims, const float* starts, float* costs) = 0;

  /// Multiply-adds of both for one plan.
  virtual std::size_t multiply_adds() const = 0;
};

}  // namespace neuroshard
