#pragma once

#include <cstdint>

namespace neuroshard::bench {

/// How far this process's resident memory grows from now on.
class MemoryGrowth {
 public:
  MemoryGrowth();

  /// Bytes by which it has exceeded, at most, what it was when this object was made.
  std::int64_t peak_bytes() const;

 private:
  std::int64_t before_;
};

}  // namespace neuroshard::bench
