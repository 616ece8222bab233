#include "problem.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

namespace neuroshard {

namespace {

constexpr std::int64_t kMaxTables = std::int64_t{1} << 24;
constexpr std::int64_t kMaxDevices = std::int64_t{1} << 16;
constexpr std::int64_t kMaxWidth = std::int64_t{1} << 30;
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

}  // namespace

Problem::Problem(Tables tables, std::int64_t dim_column, std::int64_t devices,
                 std::int64_t memory_bytes)
    : tables_(std::move(tables)), memory_bytes_(memory_bytes) {
  const std::size_t count = tables_.widths.size();
  check_range(static_cast<std::int64_t>(count), "number of tables", 1, kMaxTables);
  check_length(tables_.output_widths, "output_width", count);
  check_length(tables_.bytes_per_column, "bytes_per_column", count);
  check_length(tables_.bytes_fixed, "bytes_fixed", count);
  features_ = tables_.features.size() / count;
  if (features_ == 0 || features_ * count != tables_.features.size()) {
    throw std::invalid_argument("features must have the shape [tables, features]");
  }
  check_range(dim_column, "dim_column", 0, static_cast<std::int64_t>(features_) - 1);
  dim_column_ = static_cast<std::size_t>(dim_column);
  check_range(devices, "devices", 1, kMaxDevices);
  devices_ = static_cast<int>(devices);
  check_range(memory_bytes, "memory_bytes", 0, kMaxBytes);
  double total_bytes = 0.0;
  for (std::size_t table = 0; table < count; ++table) {
    check_table(table);
    const int number = static_cast<int>(table);
    total_output_dim_ += shard_output_dim(number, tables_.widths[table]);
    total_bytes += static_cast<double>(shard_bytes(number, tables_.widths[table]));
  }
  if (total_bytes > static_cast<double>(kMaxBytes)) {
    throw std::invalid_argument(
        "bytes_per_column and bytes_fixed: all tables together must stay within 2^60 bytes");
  }
}

void Problem::check_table(std::size_t table) const {
  const auto first = tables_.features.begin() + static_cast<std::ptrdiff_t>(table * features_);
  if (!std::all_of(first, first + static_cast<std::ptrdiff_t>(features_),
                   [](float value) { return std::isfinite(value); })) {
    throw std::invalid_argument(entry("features", table) + " must hold finite numbers");
  }
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

void Problem::shard_features(int table, std::int64_t width, std::span<float> output) const {
  std::copy_n(tables_.features.begin() + static_cast<std::ptrdiff_t>(index(table) * features_),
              features_, output.begin());
  output[dim_column_] = static_cast<float>(width);
}

}  // namespace neuroshard
