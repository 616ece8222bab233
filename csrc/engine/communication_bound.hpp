#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "all_to_all_bound.hpp"
#include "interrupt.hpp"
#include "shared_communication.hpp"

namespace neuroshard {

/// Bounds of what both all-to-alls of a plan cost, whatever its devices send and when they start.
struct AllToAllCosts {
  double mean_forward = 0.0;   // over the devices
  double last_forward = 0.0;   // of each device that starts last
  double mean_backward = 0.0;  // over the devices
  double any_backward = 0.0;   // of each device
};

/// Bounds over cells that together hold all loads; the cells that matter are made smaller as it
/// goes: branch and bound.
class CommunicationBound {
 public:
  /// For devices whose compute costs differ by at most so much, ms.
  CommunicationBound(const SharedCommunication& networks, int devices, double output_dim,
                     double most_apart);

  /// A bound for all loads in a cell; infinite where there are none.
  using Value = std::function<double(const AllToAllCosts&, const LoadCell&)>;

  /// The least of the bounds over the cells, after so many of the least ones have been halved.
  double least(const Value& value, int halvings, Interrupt& interrupt);

 private:
  struct Bounded {
    LoadCell cell;
    AllToAllCosts costs;
  };
  LoadCell root(double most_wait) const;
  bool tighten(LoadCell& cell) const;
  void halve(std::size_t number);
  void add(LoadCell cell, const AllToAllCosts& known);

  double devices_;
  double output_dim_;
  std::vector<AllToAllBound::NodeClass> classes_;
  double nodes_ = 0.0;
  double largest_node_ = 0.0;
  double unit_ = 0.0;  // ms: costs where all devices send the same
  AllToAllBound forward_;
  AllToAllBound backward_;
  std::vector<Bounded> cells_;
};

}  // namespace neuroshard
