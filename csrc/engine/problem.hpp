#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace neuroshard {

/// What to plan: unsplit tables, the devices that shall hold them, and what every plan has to keep.
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

  /// What every plan has to keep. The lists with a value for each table may be empty.
  struct Constraints {
    std::vector<std::int64_t> memory_bytes;  // of each device
    // No split leaves a shard narrower than this; 0 allows every width.
    std::vector<std::int64_t> least_widths;
    // The table is split at once, if it is, into shards of this width; 0 splits into halves.
    std::vector<std::int64_t> split_widths;
    // The device that holds the table, unsplit; kAnyDevice leaves it to the search.
    std::vector<std::int64_t> pinned;
  };
  static constexpr std::int64_t kAnyDevice = -1;

  /// Throws std::invalid_argument.
  Problem(Tables tables, Constraints constraints);

  int tables() const { return static_cast<int>(tables_.widths.size()); }
  std::size_t features() const { return features_; }
  int devices() const { return static_cast<int>(constraints_.memory_bytes.size()); }

  /// As the constructor takes them.
  const Tables& all_tables() const { return tables_; }

  /// As the constructor takes them, with a value for each table in every list.
  const Constraints& constraints() const { return constraints_; }

  /// Memory cap of `device`.
  std::int64_t memory_bytes(int device) const { return constraints_.memory_bytes[index(device)]; }

  /// Output dim of all tables together; column splits do not change it.
  double total_output_dim() const { return total_output_dim_; }

  /// Columns of `table`.
  std::int64_t table_width(int table) const { return tables_.widths[index(table)]; }

  /// Output dim of `width` columns of `table`: fp32 numbers that their device sends for a sample.
  double shard_output_dim(int table, std::int64_t width) const {
    return static_cast<double>(width) * tables_.output_widths[index(table)];
  }

  /// The device that has to hold `table`, or kAnyDevice.
  std::int64_t pinned(int table) const { return constraints_.pinned[index(table)]; }

  /// Shards of equal width that a split of a shard of `width` columns of `table` makes; 1 where it
  /// cannot be split.
  std::int64_t pieces(int table, std::int64_t width) const;

  /// Whether it is for a constraint of its table that such a shard cannot be split.
  bool kept_whole(int table, std::int64_t width) const;

  /// The most shards that one split adds.
  std::int64_t most_added() const { return most_added_; }

  /// Memory of a shard of `width` columns of `table`.
  std::int64_t shard_bytes(int table, std::int64_t width) const {
    return tables_.bytes_per_column[index(table)] * width + tables_.bytes_fixed[index(table)];
  }

  /// Writes the features of a shard of `width` columns of `table` to `output`, `features()` floats.
  void shard_features(int table, std::int64_t width, std::span<float> output) const;

 private:
  static std::size_t index(int number) { return static_cast<std::size_t>(number); }
  void check_table(std::size_t table) const;
  void check_constraints(std::size_t table) const;
  void check_pinned_memory() const;

  Tables tables_;
  Constraints constraints_;
  std::size_t features_ = 0;  // features of one table
  double total_output_dim_ = 0.0;
  std::int64_t most_added_ = 1;
};

/// The width of every shard is a multiple of this.
inline constexpr std::int64_t kColumns = 4;

/// Whether a shard of `width` columns can be cut into halves.
constexpr bool has_halves(std::int64_t width) { return width / 2 % kColumns == 0; }

}  // namespace neuroshard
