#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "interrupt.hpp"
#include "problem.hpp"
#include "random.hpp"
#include "shard_catalog.hpp"
#include "split_plan.hpp"

namespace neuroshard {

/// Looks for a plan that keeps the memory of the devices, whatever it costs.
///
/// Shards are placed one by one, the largest first, and split where no device has room. What then
/// is too much on some devices is taken to others by moving and trading shards, each time the
/// change that leaves least too much, but none back soon (tabu search); where that leads nowhere,
/// by splitting more or putting pieces together. Every attempt begins in another order.
class MemorySearch {
 public:
  /// Keeps references; `catalog` learns the kinds of shards that come up.
  MemorySearch(const Problem& problem, ShardCatalog& catalog, int max_splits, std::uint64_t seed,
               Interrupt& interrupt);

  /// A plan; nothing where none was found in so many attempts. Throws Interrupted.
  std::optional<SplitPlan> find(int attempts) { return find(0, attempts); }

  /// The same, but none of the attempts begins with the largest shards alone.
  std::optional<SplitPlan> find_at_random(int attempts) { return find(kOrdered, attempts); }

 private:
  using Kind = ShardCatalog::Kind;

  /// A shard to another device, which gives one for it or none.
  struct Step {
    int shard = -1;
    int device = -1;
    int other = -1;               // shard that comes back; -1: none
    std::int64_t overflow = 0;    // of the plan after it
    std::int64_t unevenness = 0;  // of the two devices after it, among equals
  };

  static constexpr int kOrdered = 2;  // attempts that place the largest first, without chance

  std::optional<SplitPlan> find(int first, int attempts);
  void place(int attempt);
  void put(Kind kind, int device);
  bool repair();
  Step best_step(int device, int now, std::int64_t least) const;
  void take(const Step& step, int now);
  bool split_or_merge(int device);
  bool split(int device);
  bool merge();
  void take_off(std::size_t shard);
  int roomiest() const;
  bool is_movable(Kind kind) const;
  std::int64_t room(int device) const {
    return problem_.memory_bytes(device) - bytes_[static_cast<std::size_t>(device)];
  }

  const Problem& problem_;
  ShardCatalog& catalog_;
  const int max_splits_;
  Interrupt& interrupt_;
  const int devices_;
  Random random_;

  SplitPlan plan_;
  std::vector<std::int64_t> bytes_;  // on each device
  std::int64_t overflow_ = 0;        // bytes that devices hold beyond their memory
  std::vector<int> stays_until_;     // step of the repair before which the shard stays
};

/// Why no plan can keep the memory of the devices with so many splits, in a sentence; empty where
/// that is not known.
std::string why_impossible(const Problem& problem, int max_splits);

}  // namespace neuroshard
