#pragma once

#include <cstdint>
#include <vector>

namespace neuroshard {

/// Shard indices of each device, in the order of placement.
using Placement = std::vector<std::vector<std::int64_t>>;

/// A plan and its predicted costs; vectors hold one value for each device.
struct Plan {
  double cost = 0.0;  // the largest compute + forward + backward, ms
  std::vector<std::int64_t> column_splits;
  Placement placement;
  std::vector<float> compute;           // ms
  std::vector<float> forward;           // ms
  std::vector<float> backward;          // ms
  std::vector<double> output_dim_sums;  // fp32 numbers a sample
  std::vector<std::int64_t> memory_bytes;
};

}  // namespace neuroshard
