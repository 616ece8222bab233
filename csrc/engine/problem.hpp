#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace neuroshard {

/// What to plan: unsplit tables, and identical devices that shall hold them.
class Problem {
 public:
  /// One value for each table, as the user gives them; the constructor of Problem checks them.
  struct Tables {
    // A shard of `width` columns has the features  features + features_per_column * width +
    // features_per_doubling * log2(width).
    std::vector<float> features;                 // [tables][features], row by row
    std::vector<float> features_per_column;      // likewise
    std::vector<float> features_per_doubling;    // [features]
    std::vector<std::int64_t> widths;            // columns, a positive multiple of 4
    std::vector<double> output_widths;           // fp32 numbers sent for each column, at least 0
    std::vector<std::int64_t> bytes_per_column;  // at least 0
    std::vector<std::int64_t> bytes_fixed;       // at least 0, in every shard of the table
  };

  /// Throws std::invalid_argument.
  Problem(Tables tables, std::int64_t devices, std::int64_t memory_bytes);

  int tables() const { return static_cast<int>(tables_.widths.size()); }
  std::size_t features() const { return features_; }
  int devices() const { return devices_; }

  /// As the constructor takes them.
  const Tables& all_tables() const { return tables_; }

  /// Memory cap of one device.
  std::int64_t memory_bytes() const { return memory_bytes_; }

  /// Output dim of all tables together; column splits do not change it.
  double total_output_dim() const { return total_output_dim_; }

  /// Columns of `table`.
  std::int64_t table_width(int table) const { return tables_.widths[index(table)]; }

  /// Output dim of `width` columns of `table`: fp32 numbers that their device sends for a sample.
  double shard_output_dim(int table, std::int64_t width) const {
    return static_cast<double>(width) * tables_.output_widths[index(table)];
  }

  /// Memory of a shard of `width` columns of `table`.
  std::int64_t shard_bytes(int table, std::int64_t width) const {
    return tables_.bytes_per_column[index(table)] * width + tables_.bytes_fixed[index(table)];
  }

  /// Writes the features of a shard of `width` columns of `table` to `output`, `features()` floats.
  void shard_features(int table, std::int64_t width, std::span<float> output) const;

 private:
  static std::size_t index(int table) { return static_cast<std::size_t>(table); }
  void check_table(std::size_t table) const;

  Tables tables_;
  std::size_t features_ = 0;  // features of one table
  int devices_ = 0;
  std::int64_t memory_bytes_;
  double total_output_dim_ = 0.0;
};

/// The width of every shard is a multiple of this.
inline constexpr std::int64_t kColumns = 4;

/// Whether a shard of `width` columns can be split.
constexpr bool can_split(std::int64_t width) { return width / 2 % kColumns == 0; }

}  // namespace neuroshard
