#include "report.hpp"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <ios>
#include <ostream>

namespace neuroshard::bench {

namespace {

constexpr double kMsPerSecond = 1e3;

/// As JSON wants it, which allows every byte in a string but these.
std::string json_string(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string quoted = "\"";
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte < 0x20) {
      quoted += "\\u00";
      quoted += kDigits[byte / 16];
      quoted += kDigits[byte % 16];
    } else {
      quoted += character == '"' || character == '\\' ? "\\" : "";
      quoted += character;
    }
  }
  return quoted + "\"";
}

void print_cost(const std::optional<double>& cost, std::ostream& stream) {
  if (cost && std::isfinite(*cost)) {
    stream << std::setprecision(17) << *cost << std::setprecision(6);
  } else {
    stream << "null";
  }
}

}  // namespace

double Report::time(double share) const {
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(times.size())));
  return times[std::max<std::size_t>(rank, 1) - 1];
}

double Report::arithmetic_floor() const {
  return kMsPerSecond * static_cast<double>(multiply_adds) / throughput.multiply_adds;
}

double Report::stepping_floor() const {
  return kMsPerSecond * static_cast<double>(counts.distinct_placements) *
         static_cast<double>(devices) / throughput.comparisons;
}

void print_text(const Report& report, std::ostream& stream) {
  const SearchCounts& counts = report.counts;
  const double arithmetic = report.arithmetic_floor();
  const double stepping = report.stepping_floor();
  const double median = report.time(0.5);
  stream << std::setprecision(4);
  stream << report.capture << ": " << report.tables << " tables on " << report.devices
         << " devices; " << report.isa << ", " << report.threads << " thread(s), "
         << report.times.size() << " plan(s)\n"
         << "plan time            median " << median << " ms, p90 " << report.time(0.9)
         << " ms, p99 " << report.time(0.99) << " ms\n"
         << "placements           " << counts.placements << " made, each an evaluation of the set "
         << "network; " << counts.distinct_placements << " distinct\n"
         << "sets on a device     " << counts.distinct_sets << " distinct\n"
         << "finished plans       " << counts.plans << " costed; " << counts.distinct_plans
         << " distinct\n"
         << "arithmetic floor     " << arithmetic
         << " ms: " << static_cast<double>(report.multiply_adds) / 1e6 << " M multiply-adds at "
         << report.throughput.multiply_adds / 1e9 << " G/s\n"
         << "stepping floor       " << stepping << " ms: " << counts.distinct_placements << " × "
         << report.devices << " devices compared at " << report.throughput.comparisons / 1e9
         << " G/s\n"
         << "median plan time     " << median / arithmetic << " times the arithmetic floor, "
         << median / (arithmetic + stepping) << " times both\n"
         << "peak extra memory    " << static_cast<double>(report.peak_bytes) / 1e6 << " MB\n";
  if (report.cost) {
    stream << std::setprecision(8) << "cost of the plan     " << *report.cost << " ms";
  } else {
    stream << "no plan found";
  }
  stream << (report.verified ? ", as captured\n" : "\n");
}

void print_json(const Report& report, std::ostream& stream) {
  const SearchCounts& counts = report.counts;
  const double arithmetic = report.arithmetic_floor();
  const double stepping = report.stepping_floor();
  const double median = report.time(0.5);
  stream << std::setprecision(6) << "{\"capture\": " << json_string(report.capture)
         << ", \"tables\": " << report.tables << ", \"devices\": " << report.devices
         << ", \"isa\": " << json_string(report.isa) << ", \"threads\": " << report.threads
         << ", \"repeat\": " << report.times.size() << ", \"median_ms\": " << median
         << ", \"p90_ms\": " << report.time(0.9) << ", \"p99_ms\": " << report.time(0.99)
         << ", \"min_ms\": " << report.times.front() << ", \"max_ms\": " << report.times.back()
         << ", \"placements\": " << counts.placements
         << ", \"distinct_placements\": " << counts.distinct_placements
         << ", \"distinct_sets\": " << counts.distinct_sets << ", \"plans\": " << counts.plans
         << ", \"distinct_plans\": " << counts.distinct_plans
         << ", \"multiply_adds\": " << report.multiply_adds
         << ", \"multiply_adds_per_second\": " << report.throughput.multiply_adds
         << ", \"comparisons_per_second\": " << report.throughput.comparisons
         << ", \"arithmetic_floor_ms\": " << arithmetic << ", \"stepping_floor_ms\": " << stepping
         << ", \"times_arithmetic_floor\": " << median / arithmetic
         << ", \"times_both_floors\": " << median / (arithmetic + stepping)
         << ", \"peak_extra_bytes\": " << report.peak_bytes << ", \"cost_ms\": ";
  print_cost(report.cost, stream);
  stream << ", \"captured_cost_ms\": ";
  print_cost(report.captured_cost, stream);
  stream << ", \"verified\": " << (report.verified ? "true" : "false") << "}\n";
}

}  // namespace neuroshard::bench
