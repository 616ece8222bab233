#pragma once

#include <cstddef>
#include <cstdint>

#include "spread.hpp"

namespace neuroshard {

/// Random numbers that depend on the seed alone: splitmix64.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(spread(seed)) {}

  std::uint64_t next() {
    const std::uint64_t value = spread(state_);
    state_ += 0x9e3779b97f4a7c15;
    return value;
  }

  /// 0 … `count` - 1; `count` is far below 2^64.
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(next() % count); }

  /// At least 0 and below 1.
  double uniform() { return static_cast<double>(next() >> 11U) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

}  // namespace neuroshard
