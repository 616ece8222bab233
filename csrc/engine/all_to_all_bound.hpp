#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "rounding.hpp"
#include "shared_communication.hpp"

namespace neuroshard {

/// A set of loads: what the devices send, and how long they wait for the last one before the
/// forward all-to-all. Output dims are fp32 numbers a sample, waits ms.
struct LoadCell {
  Range most;           // output dim of the device that sends the most
  Range least;          // and the least
  Range most_of_node;   // output dim of the node that sends the most
  Range least_of_node;  // and the least
  Range longest_wait;
  Range mean_wait;  // over the devices
};

/// Bounds of one all-to-all by networks of two layers each, for loads in a cell.
///
/// Hidden units of the network `device` are ReLUs of functions that are affine in three numbers of
/// the device: its output dim, that of its node, and its wait. Where these lie in ranges, a ReLU
/// lies between two lines. So a weighed sum of hidden units, of one device or in the mean over all,
/// is bounded by an affine function of the three, or of their means; and these are known, as the
/// output dims of all devices have a given sum. The maximum of a channel is at least its mean, and
/// at least what the devices have that are at the ends of the cell's ranges. The hidden units of
/// `head` lie between lines in the same way.
class AllToAllBound {
 public:
  /// `output_dim`: of all devices together.
  AllToAllBound(const SharedNetworks& networks, const SharedCommunication& communication,
                int devices, double output_dim);

  struct Costs {
    double mean;  // over the devices
    double any;   // of each of them
    double last;  // of each one that does not wait
  };

  /// At least what the engine computes in fp32. `any` is left out, and is -infinity, where there
  /// are waits.
  Costs least(const LoadCell& cell) const;

  /// By how much the costs of two devices of a plan can differ at most for loads in the cell.
  double most_apart(const LoadCell& cell) const;

  struct NodeClass {
    double size;   // devices of a node
    double count;  // nodes of this size
  };
  static std::vector<NodeClass> node_classes(std::int64_t devices_per_node, int devices);

 private:
  /// constant + dim * output dim of a device + node * that of its node + wait * its wait.
  struct Affine {
    double constant = 0.0;
    double dim = 0.0;
    double node = 0.0;
    double wait = 0.0;

    void add(double factor, const Affine& other) {
      constant += factor * other.constant;
      dim += factor * other.dim;
      node += factor * other.node;
      wait += factor * other.wait;
    }
  };
  /// What lies below and above each hidden unit of a device.
  struct BelowAbove {
    std::array<Affine, 2> lines;
  };
  using Lines = std::vector<BelowAbove>;
  using ClassLines = std::vector<Lines>;  // for each class of nodes
  /// A set of devices.
  struct Box {
    Range dim;
    Range node;
    Range wait;
  };
  static Box box_of(const LoadCell& cell, bool has_wait);
  /// A weighed sum of channels: of a device, their mean and their maximum over the devices.
  struct Channels {
    std::vector<double> own;
    std::vector<double> mean;
    std::vector<double> maximum;
  };
  /// The same with the hidden units that the channels are made of.
  struct Row {
    std::vector<double> own;
    std::vector<double> mean;
    std::vector<double> maximum;
    double constant = 0.0;
  };
  /// What is known of the loads in a cell.
  struct Known {
    Box all;
    Range mean_wait;
    ClassLines mean_lines;       // below, they touch near the mean device
    std::vector<double> mean;    // of each channel, at least
    std::vector<Range> maximum;  // of each channel
    // Of the head's hidden units, and of their negatives, what is not the device's own: `others` of
    // `low_` and `high_`.
    std::vector<double> low;
    std::vector<double> high;
  };
  /// A line below the cost of a device, over the hidden units of the head.
  struct HeadLine {
    std::vector<double> slope;
    double constant = 0.0;
  };

  static Channels absorbed(Channels channels);
  static Channels of_mean(const Channels& channels);
  static Channels negative(Channels channels);
  Row row(const Channels& channels) const;
  Channels weighed_head(const std::vector<double>& weights) const;

  Known know(const LoadCell& cell) const;
  ClassLines lines(const Box& box, const Box& touched) const;
  ClassLines lines(const Box& box) const;
  Affine below(const std::vector<double>& weights, const Lines& lines) const;
  double least_own(const std::vector<double>& weights, const ClassLines& lines,
                   const Box& box) const;
  double least_mean(const std::vector<double>& weights, const Known& known) const;
  double others(const Row& row, const Known& known) const;
  std::vector<Range> head_units(const Known& known, const ClassLines& lines, const Box& box) const;
  std::vector<double> near_mean(const Known& known, bool is_low) const;
  HeadLine head_line(const std::vector<Range>& units, const std::vector<double>& touched) const;
  double least_cost(const Known& known, const Box& box) const;
  double least_mean_cost(const Known& known) const;
  Affine affine_rounding(const SharedNetworks& networks, double per_dim) const;
  double rounding(const Box& box) const {
    return rounding_.constant + rounding_.dim * box.dim.high + rounding_.node * box.node.high +
           rounding_.wait * box.wait.high;
  }

  double devices_;
  double output_dim_;
  std::vector<NodeClass> classes_;
  std::vector<std::vector<Affine>> hidden_;  // [classes], before ReLU
  bool has_wait_;
  std::vector<std::vector<double>> channel_weights_;  // [channels][hidden units]
  std::vector<double> channel_bias_;
  std::vector<Channels> head_;  // [hidden units of the head], before ReLU
  std::vector<double> head_bias_;
  std::vector<double> cost_weights_;  // of the hidden units of the head
  double cost_bias_;
  std::vector<Row> low_, high_;  // of `head_` and its negatives
  Affine rounding_;              // at most, by the most of each number
};

}  // namespace neuroshard
