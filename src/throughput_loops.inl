// The loops whose throughput is measured, included by one source file for each instruction set,
// which defines NEUROSHARD_LOOPS and NEUROSHARD_VECTOR_BYTES as for engine/kernels/kernels.inl.

#include "throughput.hpp"

namespace neuroshard::bench {

namespace {

using Size = decltype(sizeof(0));
constexpr Size kPart = NEUROSHARD_VECTOR_BYTES / sizeof(float);
using Floats [[gnu::vector_size(NEUROSHARD_VECTOR_BYTES)]] = float;

/// Enough that none waits for its own last result, and no more than there are registers for.
constexpr Size kSums = 12;

float multiply_add(Size rounds, const float* input) {
  Floats factor;
  Floats addend;
  __builtin_memcpy(&factor, input, sizeof(factor));
  __builtin_memcpy(&addend, input + 16, sizeof(addend));
  Floats sums[kSums];
  for (Size i = 0; i < kSums; ++i) {
    sums[i] = static_cast<float>(i) * factor;  // different, or one would do for all
  }
  for (Size round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (Floats& sum : sums) {
      sum = sum * factor + addend;
    }
  }
  Floats total = {};
  for (const Floats& sum : sums) {
    total += sum;
  }
  return total[0];
}

float compare(Size rounds, const float* cost, const float* memory, const float* output_dims,
              Size count) {
  constexpr Size kChains = 4;
  const Floats infinity = __builtin_inff() + Floats{};
  const Floats limit = 0.5F + Floats{};
  Floats best[kChains] = {infinity, infinity, infinity, infinity};
  for (Size round = 0; round < rounds; ++round) {
    for (Size at = 0; at < count; at += kChains * kPart) {
#pragma GCC unroll 4
      for (Size i = 0; i < kChains; ++i) {
        Floats c;
        Floats m;
        Floats d;
        __builtin_memcpy(&c, cost + at + i * kPart, sizeof(c));
        __builtin_memcpy(&m, memory + at + i * kPart, sizeof(m));
        __builtin_memcpy(&d, output_dims + at + i * kPart, sizeof(d));
        c = d <= limit ? c : infinity;
        c = m <= limit ? c : infinity;
        best[i] = c < best[i] ? c : best[i];
      }
    }
    __asm__ volatile("" ::: "memory");  // every round reads again
  }
  Floats total = {};
  for (const Floats& cost_of_chain : best) {
    total += cost_of_chain;
  }
  return total[0];
}

}  // namespace

extern const ThroughputLoops NEUROSHARD_LOOPS;
const ThroughputLoops NEUROSHARD_LOOPS = {
    .multiply_adds = kSums * kPart, .multiply_add = multiply_add, .compare = compare};

}  // namespace neuroshard::bench
