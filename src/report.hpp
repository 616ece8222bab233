#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "search_counts.hpp"
#include "throughput.hpp"

namespace neuroshard::bench {

/// What was measured.
struct Report {
  std::string capture;
  int tables;
  int devices;
  std::string_view isa;
  int threads;
  std::vector<double> times;  // of the plans, ms, ascending
  SearchCounts counts;
  std::size_t multiply_adds;  // of which the distinct sets and plans of the search consist
  Throughput throughput;
  std::int64_t peak_bytes;              // that planning took on top of what the problem takes
  std::optional<double> cost;           // of the plan, ms; nothing if there is no plan
  std::optional<double> captured_cost;  // likewise
  bool verified;                        // whether the plan is known to be the captured one

  /// The time below which this share of the plans stayed, ms (nearest rank).
  double time(double share) const;

  /// Time of one thread that does nothing but the multiply-adds of the networks, at the processor's
  /// peak, ms. The engine avoids some of them.
  double arithmetic_floor() const;

  /// Time of one thread that compares all devices once for every distinct placement, at the
  /// processor's peak, ms.
  double stepping_floor() const;
};

void print_text(const Report& report, std::ostream& stream);
void print_json(const Report& report, std::ostream& stream);

}  // namespace neuroshard::bench
