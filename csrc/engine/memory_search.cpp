#include "memory_search.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <utility>

namespace neuroshard {

namespace {

constexpr int kMostSteps = 2000;  // of the repair of one attempt
constexpr int kShortestStay = 4;  // steps that a moved shard stays at least
constexpr int kLongestStay = 12;  // and at most
constexpr int kPatience = 40;     // steps that may bring nothing until shards are split or merged

std::int64_t above(std::int64_t bytes, std::int64_t memory) {
  return std::max<std::int64_t>(0, bytes - memory);
}

}  // namespace

MemorySearch::MemorySearch(const Problem& problem, ShardCatalog& catalog, int max_splits,
                           std::uint64_t seed, Interrupt& interrupt)
    : problem_(problem),
      catalog_(catalog),
      max_splits_(max_splits),
      interrupt_(interrupt),
      devices_(problem.devices()),
      random_(seed) {}

std::optional<SplitPlan> MemorySearch::find(int first, int attempts) {
  for (int attempt = first; attempt < first + attempts; ++attempt) {
    place(attempt);
    if (overflow_ == 0 || repair()) {
      return plan_;
    }
  }
  return std::nullopt;
}

bool MemorySearch::is_movable(Kind kind) const {
  return problem_.pinned(catalog_.table(kind)) == Problem::kAnyDevice;
}

void MemorySearch::put(Kind kind, int device) {
  std::int64_t& bytes = bytes_[static_cast<std::size_t>(device)];
  overflow_ -= above(bytes, problem_.memory_bytes(device));
  bytes += catalog_.bytes(kind);
  overflow_ += above(bytes, problem_.memory_bytes(device));
  plan_.shards.push_back({.kind = kind, .device = device});
}

void MemorySearch::take_off(std::size_t shard) {
  const auto [kind, device, origin] = plan_.shards[shard];
  std::int64_t& bytes = bytes_[static_cast<std::size_t>(device)];
  overflow_ -= above(bytes, problem_.memory_bytes(device));
  bytes -= catalog_.bytes(kind);
  overflow_ += above(bytes, problem_.memory_bytes(device));
  plan_.shards.erase(plan_.shards.begin() + static_cast<std::ptrdiff_t>(shard));
  stays_until_.erase(stays_until_.begin() + static_cast<std::ptrdiff_t>(shard));
}

/// The first plan of an attempt, which may be too much for some devices.
void MemorySearch::place(int attempt) {
  plan_ = {};
  bytes_.assign(static_cast<std::size_t>(devices_), 0);
  overflow_ = 0;
  // The largest first, but for a little chance after the first attempts.
  using Sized = std::pair<double, Kind>;
  std::priority_queue<Sized, std::vector<Sized>, std::less<>> waiting;
  const auto push = [&](Kind kind) {
    const double chance = attempt < kOrdered ? 1.0 : 0.5 + random_.uniform();
    waiting.emplace(static_cast<double>(catalog_.bytes(kind)) * chance, kind);
  };
  for (int table = 0; table < problem_.tables(); ++table) {
    if (is_movable(table)) {
      push(table);
    } else {
      put(table, static_cast<int>(problem_.pinned(table)));
    }
  }
  const bool is_tight = attempt % 2 == 1;
  while (!waiting.empty()) {
    interrupt_.check();
    const Kind kind = waiting.top().second;
    waiting.pop();
    // The device with most room; in every other attempt that with least of those that have enough.
    int roomiest = 0;
    int tightest = -1;
    for (int device = 0; device < devices_; ++device) {
      roomiest = room(device) > room(roomiest) ? device : roomiest;
      if (room(device) >= catalog_.bytes(kind) && (tightest < 0 || room(device) < room(tightest))) {
        tightest = device;
      }
    }
    if (tightest < 0 && catalog_.pieces(kind) > 1 && plan_.splits < max_splits_) {
      catalog_.add_pieces({&kind, 1});
      ++plan_.splits;
      for (std::int64_t piece = 0; piece < catalog_.pieces(kind); ++piece) {
        push(catalog_.piece(kind));
      }
      continue;
    }
    put(kind, is_tight && tightest >= 0 ? tightest : roomiest);
  }
}

/// Whether all devices keep their memory in the end.
bool MemorySearch::repair() {
  stays_until_.assign(plan_.shards.size(), 0);
  std::int64_t least = overflow_;
  int patience = kPatience;
  for (int now = 1; now <= kMostSteps && overflow_ > 0; ++now) {
    interrupt_.check();
    int fullest = 0;
    for (int device = 1; device < devices_; ++device) {
      fullest = room(device) < room(fullest) ? device : fullest;
    }
    if (--patience == 0) {
      patience = kPatience;
      if (split_or_merge(fullest)) {
        continue;
      }
    }
    const Step step = best_step(fullest, now, least);
    if (step.shard < 0) {
      if (!split_or_merge(fullest)) {
        return false;
      }
      continue;
    }
    take(step, now);
    if (overflow_ < least) {
      least = overflow_;
      patience = kPatience;
    }
  }
  return overflow_ == 0;
}

/// The best way to take a shard off `device`.
MemorySearch::Step MemorySearch::best_step(int device, int now, std::int64_t least) const {
  Step best{.overflow = std::numeric_limits<std::int64_t>::max()};
  const std::int64_t memory = problem_.memory_bytes(device);
  const std::int64_t bytes = bytes_[static_cast<std::size_t>(device)];
  const auto consider = [&](int shard, int to, int other) {
    const std::int64_t back =
        other < 0 ? 0 : catalog_.bytes(plan_.shards[static_cast<std::size_t>(other)].kind);
    const std::int64_t gone =
        catalog_.bytes(plan_.shards[static_cast<std::size_t>(shard)].kind) - back;
    if (gone <= 0) {
      return;
    }
    const std::int64_t there = bytes_[static_cast<std::size_t>(to)];
    const std::int64_t memory_there = problem_.memory_bytes(to);
    const std::int64_t overflow = overflow_ - above(bytes, memory) - above(there, memory_there) +
                                  above(bytes - gone, memory) + above(there + gone, memory_there);
    const bool is_free = stays_until_[static_cast<std::size_t>(shard)] <= now &&
                         (other < 0 || stays_until_[static_cast<std::size_t>(other)] <= now);
    if (!is_free && overflow >= least) {
      return;
    }
    // Of equals the one that leaves both devices as much alike as can be.
    const std::int64_t unevenness =
        std::abs((bytes - gone - memory) - (there + gone - memory_there));
    if (overflow < best.overflow || (overflow == best.overflow && unevenness < best.unevenness)) {
      best = {.shard = shard,
              .device = to,
              .other = other,
              .overflow = overflow,
              .unevenness = unevenness};
    }
  };
  std::vector<int> own;
  for (std::size_t shard = 0; shard < plan_.shards.size(); ++shard) {
    if (plan_.shards[shard].device == device && is_movable(plan_.shards[shard].kind)) {
      own.push_back(static_cast<int>(shard));
    }
  }
  for (const int shard : own) {
    for (int to = 0; to < devices_; ++to) {
      if (to != device) {
        consider(shard, to, -1);
      }
    }
    for (std::size_t other = 0; other < plan_.shards.size(); ++other) {
      const PlacedShard& there = plan_.shards[other];
      if (there.device != device && is_movable(there.kind)) {
        consider(shard, there.device, static_cast<int>(other));
      }
    }
  }
  return best;
}

void MemorySearch::take(const Step& step, int now) {
  const auto move = [&](int shard, int to) {
    PlacedShard& moved = plan_.shards[static_cast<std::size_t>(shard)];
    bytes_[static_cast<std::size_t>(moved.device)] -= catalog_.bytes(moved.kind);
    bytes_[static_cast<std::size_t>(to)] += catalog_.bytes(moved.kind);
    moved.device = to;
    stays_until_[static_cast<std::size_t>(shard)] =
        now + kShortestStay +
        static_cast<int>(random_.below(static_cast<std::size_t>(kLongestStay - kShortestStay)));
  };
  const int from = plan_.shards[static_cast<std::size_t>(step.shard)].device;
  move(step.shard, step.device);
  if (step.other >= 0) {
    move(step.other, from);
  }
  overflow_ = step.overflow;
}

int MemorySearch::roomiest() const {
  int found = 0;
  for (int device = 1; device < devices_; ++device) {
    found = room(device) > room(found) ? device : found;
  }
  return found;
}

/// Splits a shard of `device`, by chance, and takes pieces to the device with most room; where all
/// splits are used up, puts pieces of a shard together first. False where neither can be done.
bool MemorySearch::split_or_merge(int device) {
  return (plan_.splits < max_splits_ || merge()) && split(device);
}

bool MemorySearch::split(int device) {
  std::vector<std::size_t> splittable;
  for (std::size_t shard = 0; shard < plan_.shards.size(); ++shard) {
    if (plan_.shards[shard].device == device && catalog_.pieces(plan_.shards[shard].kind) > 1) {
      splittable.push_back(shard);
    }
  }
  if (splittable.empty()) {
    return false;
  }
  const std::size_t shard = splittable[random_.below(splittable.size())];
  const Kind kind = plan_.shards[shard].kind;
  catalog_.add_pieces({&kind, 1});
  take_off(shard);
  put(catalog_.piece(kind), device);
  for (std::int64_t piece = 1; piece < catalog_.pieces(kind); ++piece) {
    put(catalog_.piece(kind), roomiest());
  }
  stays_until_.resize(plan_.shards.size());
  ++plan_.splits;
  return true;
}

/// Puts pieces of some shard, by chance, together; false where there are none.
bool MemorySearch::merge() {
  std::vector<std::size_t> pieces;
  for (std::size_t shard = 0; shard < plan_.shards.size(); ++shard) {
    if (catalog_.whole(plan_.shards[shard].kind) != ShardCatalog::kNone) {
      pieces.push_back(shard);
    }
  }
  if (pieces.empty()) {
    return false;
  }
  const Kind kind = plan_.shards[pieces[random_.below(pieces.size())]].kind;
  const Kind whole = catalog_.whole(kind);
  std::erase_if(pieces, [&](std::size_t shard) { return plan_.shards[shard].kind != kind; });
  if (std::cmp_less(pieces.size(), catalog_.pieces(whole))) {
    return false;
  }
  pieces.resize(static_cast<std::size_t>(catalog_.pieces(whole)));
  std::ranges::sort(pieces, std::greater<>{});
  for (const std::size_t piece : pieces) {
    take_off(piece);
  }
  put(whole, roomiest());
  stays_until_.resize(plan_.shards.size());
  --plan_.splits;
  return true;
}

std::string why_impossible(const Problem& problem, int max_splits) {
  std::int64_t memory = 0;
  std::int64_t most = 0;
  for (int device = 0; device < problem.devices(); ++device) {
    memory +=
        std::min(problem.memory_bytes(device), std::numeric_limits<std::int64_t>::max() - memory);
    most = std::max(most, problem.memory_bytes(device));
  }
  std::int64_t bytes = 0;
  for (int table = 0; table < problem.tables(); ++table) {
    bytes += problem.shard_bytes(table, problem.table_width(table));
  }
  if (bytes > memory) {
    return "the tables take " + std::to_string(bytes) + " bytes, all devices together have " +
           std::to_string(memory);
  }
  std::int64_t splits = 0;  // that it takes until every shard fits the largest device
  for (int table = 0; table < problem.tables(); ++table) {
    std::int64_t width = problem.table_width(table);
    std::int64_t shards = 1;
    while (problem.shard_bytes(table, width) > most) {
      const std::int64_t pieces = problem.pieces(table, width);
      if (pieces == 1) {
        return "table " + std::to_string(table) + ": its narrowest shard, of " +
               std::to_string(width) + " columns, takes " +
               std::to_string(problem.shard_bytes(table, width)) +
               " bytes, more than any device has";
      }
      splits += shards;
      shards *= pieces;
      width /= pieces;
    }
  }
  if (splits > max_splits) {
    return "tables larger than any device take " + std::to_string(splits) +
           " splits until their shards fit, more than max_splits, " + std::to_string(max_splits);
  }
  return {};
}

}  // namespace neuroshard
