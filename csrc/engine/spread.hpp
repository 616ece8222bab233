#pragma once

#include <cstdint>

namespace neuroshard {

/// The finaliser of splitmix64 (Steele, Lea and Flood, 2014): a bijection that spreads every bit.
inline std::uint64_t spread(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111eb;
  return value ^ (value >> 31U);
}

}  // namespace neuroshard
