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
/// 0 … tables - 1 are the unsplit tables; halves are added as the search splits.
class ShardCatalog {
 public:
  using Kind = int;

  /// Lets `workers` encode the unsplit tables. Keeps references to networks and problem. Throws
  /// std::invalid_argument where the networks do not suit the problem or give no finite cost.
  ShardCatalog(const CostNetworks& networks, const Problem& problem, Workers& workers,
               Interrupt& interrupt);

  /// Whether a shard of this kind can be split.
  bool can_split(Kind kind) const { return neuroshard::can_split(entry(kind).width); }

  /// Makes the halves of these kinds known, which must be splittable. Throws as the constructor
  /// does. Not to be called while others read.
  void add_halves(std::span<const Kind> kinds);

  /// The kind of both halves of a shard; `add_halves` comes first.
  Kind half(Kind kind) const { return entry(kind).half; }

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
    Kind half;  // kNone until added
  };
  static constexpr Kind kNone = -1;

  const Entry& entry(Kind kind) const { return entries_[static_cast<std::size_t>(kind)]; }
  void add(int table, std::int64_t width);
  void make_room();
  void encode(std::size_t first, std::size_t last);
  void check_costs(std::size_t first) const;

  const CostNetworks& networks_;
  const Problem& problem_;
  std::vector<Entry> entries_;
  AlignedVector<float> contributions_;  // [kinds][sums of the set network]
};

}  // namespace neuroshard
