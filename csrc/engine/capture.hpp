#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cost_networks.hpp"
#include "plan.hpp"
#include "problem.hpp"
#include "search.hpp"

namespace neuroshard {

/// One whole planning call: what it was asked, and what it answered.
struct Capture {
  /// Nothing if no plan was found.
  struct Answer {
    double cost = 0.0;  // ms
    std::vector<std::int64_t> column_splits;
    Placement placement;
  };

  CostNetworks networks;  // communication networks only for the devices of the problem
  Problem problem;
  SearchOptions options;
  std::optional<Answer> answer;
};

/// The bytes of a capture file: little-endian, versioned, with a checksum. Throws
/// std::invalid_argument for options out of range, a plan that does not fit the problem, and
/// networks that are not for so many devices.
std::string write_capture(const CostNetworks& networks, const Problem& problem,
                          const SearchOptions& options, const std::optional<Plan>& plan);

/// Throws std::invalid_argument where the bytes are no capture file, or a damaged one.
Capture read_capture(std::string_view bytes);

}  // namespace neuroshard
