#include "problem.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

namespace neuroshard {

namespace {

constexpr std::int64_t kMaxTables = std::int64_t{1} << 24;
constexpr std::int64_t kMaxDevices = std::int64_t{1} << 16;
constexpr std::int64_t kMaxWidth = std::int64_t{1} << 30;
constexpr std::int64_t kMaxPieces = std::int64_t{1} << 16;
constexpr double kMaxOutputWidth = 1e12;
// Memory of one shard and of one device; a sum of the two never leaves 64 bits.
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 60;

std::string entry(const char* name, std::size_t index) {
  return std::string(name) + "[" + std::to_string(index) + "]";
}

template <typename T>
void check_length(const std::vector<T>& values, const char* name, std::size_t tables) {
  if (values.size() != tables) {
    throw std::invalid_argument(std::string(name) + " must have one entry for each of the " +
                                std::to_string(tables) + " tables, it has " +
                                std::to_string(values.size()));
  }
}

void check_range(std::int64_t value, const std::string& name, std::int64_t low, std::int64_t high) {
  if (value < low || value > high) {
    throw std::invalid_argument(name + " must lie between " + std::to_string(low) + " and " +
                                std::to_string(high) + ", got " + std::to_string(value));
  }
}

/// Gives an empty list a value for each table.
void fill_in(std::vector<std::int64_t>& values, const char* name, std::size_t tables,
             std::int64_t value) {
  if (values.empty()) {
    values.assign(tables, value);
  }
  check_length(values, name, tables);
}

void check_finite(std::span<const float> values, const std::string& name) {
  if (!std::all_of(values.begin(), values.end(),
                   [](float value) { return std::isfinite(value); })) {
    throw std::invalid_argument(name + " must hold finite numbers");
  }
}

}  // namespace

Problem::Problem(Tables tables, Constraints constraints)
    : tables_(std::move(tables)), constraints_(std::move(constraints)) {
  const std::size_t count = tables_.widths.size();
  check_range(static_cast<std::int64_t>(count), "number of tables", 1, kMaxTables);
  check_length(tables_.output_widths, "output_width", count);
  check_length(tables_.bytes_per_column, "bytes_per_column", count);
  check_length(tables_.bytes_fixed, "bytes_fixed", count);
  features_ = tables_.features.size() / count;
  if (features_ == 0 || features_ * count != tables_.features.size()) {
    throw std::invalid_argument("features must have the shape [tables, features]");
  }
  if (tables_.features_per_column.size() != tables_.features.size()) {
    throw std::invalid_argument("features_per_column must have the shape of features");
  }
  if (tables_.features_per_doubling.size() != features_) {
    throw std::invalid_argument("features_per_doubling must have one entry for each of the " +
                                std::to_string(features_) + " features, it has " +
                                std::to_string(tables_.features_per_doubling.size()));
  }
  check_finite(tables_.features_per_doubling, "features_per_doubling");
  check_range(static_cast<std::int64_t>(constraints_.memory_bytes.size()), "devices", 1,
              kMaxDevices);
  for (const std::int64_t bytes : constraints_.memory_bytes) {
    check_range(bytes, "memory_bytes", 0, kMaxBytes);
  }
  fill_in(constraints_.least_widths, "least_widths", count, 0);
  fill_in(constraints_.split_widths, "split_widths", count, 0);
  fill_in(constraints_.pinned, "pinned", count, kAnyDevice);
  double total_bytes = 0.0;
  for (std::size_t table = 0; table < count; ++table) {
    check_table(table);
    check_constraints(table);
    const int number = static_cast<int>(table);
    most_added_ = std::max(most_added_, pieces(number, tables_.widths[table]) - 1);
    total_output_dim_ += shard_output_dim(number, tables_.widths[table]);
    total_bytes += static_cast<double>(shard_bytes(number, tables_.widths[table]));
  }
  if (total_bytes > static_cast<double>(kMaxBytes)) {
    throw std::invalid_argument(
        "bytes_per_column and bytes_fixed: all tables together must stay within 2^60 bytes");
  }
  check_pinned_memory();
}

void Problem::check_table(std::size_t table) const {
  check_finite(std::span(tables_.features).subspan(table * features_, features_),
               entry("features", table));
  check_finite(std::span(tables_.features_per_column).subspan(table * features_, features_),
               entry("features_per_column", table));
  const std::int64_t width = tables_.widths[table];
  check_range(width, entry("dims", table), kColumns, kMaxWidth);
  if (width % kColumns != 0) {
    throw std::invalid_argument(entry("dims", table) + " must be a multiple of 4, got " +
                                std::to_string(width));
  }
  const double output_width = tables_.output_widths[table];
  if (!(output_width >= 0.0 && output_width <= kMaxOutputWidth)) {
    throw std::invalid_argument(entry("output_width", table) +
                                " must be a finite number between 0 and 1e12");
  }
  check_range(tables_.bytes_per_column[table], entry("bytes_per_column", table), 0,
              kMaxBytes / width);
  check_range(tables_.bytes_fixed[table], entry("bytes_fixed", table), 0,
              kMaxBytes - tables_.bytes_per_column[table] * width);
}

void Problem::check_constraints(std::size_t table) const {
  const std::int64_t width = tables_.widths[table];
  check_range(constraints_.least_widths[table], entry("least_widths", table), 0, kMaxWidth);
  const std::int64_t split_width = constraints_.split_widths[table];
  check_range(split_width, entry("split_widths", table), 0, kMaxWidth);
  if (split_width != 0 && (split_width % kColumns != 0 || width % split_width != 0)) {
    throw std::invalid_argument(
        entry("split_widths", table) + " must be 0, or a multiple of 4 that divides the " +
        std::to_string(width) + " columns of the table, got " + std::to_string(split_width));
  }
  if (split_width != 0 && width / split_width > kMaxPieces) {
    throw std::invalid_argument(entry("split_widths", table) + " must make no more than " +
                                std::to_string(kMaxPieces) + " shards, got " +
                                std::to_string(split_width) + " for " + std::to_string(width) +
                                " columns");
  }
  check_range(constraints_.pinned[table], entry("pinned", table), kAnyDevice, devices() - 1);
}

void Problem::check_pinned_memory() const {
  std::vector<std::int64_t> left = constraints_.memory_bytes;
  for (int table = 0; table < tables(); ++table) {
    if (pinned(table) != kAnyDevice) {
      std::int64_t& bytes = left[static_cast<std::size_t>(pinned(table))];
      bytes -= shard_bytes(table, table_width(table));
      if (bytes < 0) {
        throw std::invalid_argument(entry("pinned", index(table)) + ": device " +
                                    std::to_string(pinned(table)) + " has " +
                                    std::to_string(memory_bytes(static_cast<int>(pinned(table)))) +
                                    " bytes, less than the tables pinned to it take");
      }
    }
  }
}

std::int64_t Problem::pieces(int table, std::int64_t width) const {
  if (pinned(table) != kAnyDevice) {
    return 1;
  }
  const std::int64_t least_width = constraints_.least_widths[index(table)];
  const std::int64_t split_width = constraints_.split_widths[index(table)];
  if (split_width != 0) {
    return width == table_width(table) && split_width >= least_width ? width / split_width : 1;
  }
  return has_halves(width) && width / 2 >= least_width ? 2 : 1;
}

bool Problem::kept_whole(int table, std::int64_t width) const {
  const bool constrained = constraints_.least_widths[index(table)] > kColumns ||
                           constraints_.split_widths[index(table)] != 0 ||
                           pinned(table) != kAnyDevice;
  return constrained && pieces(table, width) == 1;
}

void Problem::shard_features(int table, std::int64_t width, std::span<float> output) const {
  const auto columns = static_cast<float>(width);
  const auto doublings = static_cast<float>(std::log2(static_cast<double>(width)));
  for (std::size_t i = 0; i < features_; ++i) {
    const std::size_t of_table = index(table) * features_ + i;
    output[i] = tables_.features[of_table] + tables_.features_per_column[of_table] * columns +
                tables_.features_per_doubling[i] * doublings;
  }
}

}  // namespace neuroshard
