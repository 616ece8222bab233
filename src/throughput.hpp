#pragma once

#include <cstddef>

namespace neuroshard::bench {

/// What one thread of this processor can do at best with the instruction set in use (isa()).
struct Throughput {
  /// fp32 multiply-adds a second, register to register, fused where the processor can.
  double multiply_adds;

  /// Devices a second in a search for the lowest cost among those whose memory and output dims keep
  /// two limits, everything in the first-level cache.
  double comparisons;
};

/// Measures it, as the best of many short runs; takes a fraction of a second.
Throughput measure_throughput();

/// The loops that are measured, compiled once for each instruction set (throughput_loops.inl).
struct ThroughputLoops {
  std::size_t multiply_adds;  // of a round

  /// `input` holds at least 32 floats; the result hangs on all that was computed.
  float (*multiply_add)(std::size_t rounds, const float* input);

  /// A round goes once over `count` devices, a multiple of 64.
  float (*compare)(std::size_t rounds, const float* cost, const float* memory,
                   const float* output_dims, std::size_t count);
};

}  // namespace neuroshard::bench
