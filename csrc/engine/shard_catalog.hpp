#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "aligned.hpp"
#include "cost_networks.hpp"
#include "interrupt.hpp"
#include "problem.hpp"
#include "workers.hpp"

namespace neuroshard {

/// What the search needs to know of every kind of shard, a kind being a table and a width.
///
/// The cost networks cannot tell two shards of a kind apart, so each kind is encoded once. Kinds
/// 0 … tables - 1 are the unsplit tables; their pieces are added as the search splits.
class ShardCatalog {
 public:
  using Kind = int;
  static constexpr Kind kNone = -1;

  /// Lets `workers` encode the unsplit tables. Keeps references to networks and problem. Throws
  /// std::invalid_argument where the networks do not suit the problem or give no finite cost.
  ShardCatalog(const CostNetworks& networks, const Problem& problem, Workers& workers,
               Interrupt& interrupt);

  /// Shards that a split of a shard of this kind makes; 1 where it cannot be split.
  std::int64_t pieces(Kind kind) const { return problem_.pieces(entry(kind).table, width(kind)); }

  /// Whether it is for a constraint that such a shard cannot be split.
  bool kept_whole(Kind kind) const { return problem_.kept_whole(entry(kind).table, width(kind)); }

  /// Makes the pieces of these kinds known, which must be splittable. Throws as the constructor
  /// does. Not to be called while others read.
  void add_pieces(std::span<const Kind> kinds);

  /// The kind of all pieces of a shard; `add_pieces` comes first.
  Kind piece(Kind kind) const { return entry(kind).piece; }

  /// The kind that this one is a piece of; kNone for unsplit tables.
  Kind whole(Kind kind) const { return entry(kind).whole; }

  /// The table that it is of.
  int table(Kind kind) const { return entry(kind).table; }

  /// Makes shards of `width` columns of `table` known, whatever splits lead to them; the same
  /// number of columns makes another kind every time. Throws and is to be called as the above.
  Kind add_kind(int table, std::int64_t width);

  /// Columns.
  std::int64_t width(Kind kind) const { return entry(kind).width; }

  /// Memory in bytes.
  std::int64_t bytes(Kind kind) const { return entry(kind).bytes; }

  /// Output dim, in fp32 numbers a sample.
  double output_dim(Kind kind) const { return entry(kind).output_dim; }

  /// Compute cost of a device that holds nothing but this shard, in ms.
  float single_cost(Kind kind) const { return entry(kind).single_cost; }

  /// What the shard contributes to the sums of its device, see SetNetwork.
  const float* contribution(Kind kind) const {
    return contributions_.data() + static_cast<std::size_t>(kind) * networks_.set().sums_size();
  }

 private:
  struct Entry {
    std::int64_t width;
    std::int64_t bytes;
    double output_dim;
    float single_cost;
    int table;
    Kind piece;  // kNone until added
    Kind whole;
  };

  const Entry& entry(Kind kind) const { return entries_[static_cast<std::size_t>(kind)]; }
  void add(int table, std::int64_t width, Kind whole);
  void encode_from(std::size_t first);
  void make_room();
  void encode(std::size_t first, std::size_t last);
  void check_costs(std::size_t first) const;

  const CostNetworks& networks_;
  const Problem& problem_;
  std::vector<Entry> entries_;
  AlignedVector<float> contributions_;  // [kinds][sums of the set network]
};

}  // namespace neuroshard
