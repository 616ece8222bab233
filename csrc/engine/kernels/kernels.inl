// The engine's inner loops, included by one source file for each instruction set, which defines
// NEUROSHARD_KERNELS, the name of its table of kernels.
//
// Everything here has internal linkage and nothing comes from the standard library: a function that
// the linker may share between source files must not be compiled for a processor that may not be
// there. The vectors are a language extension that gcc and clang know; where they are wider than the
// processor's, the compiler takes several registers.

#include "kernels.hpp"

namespace neuroshard {

namespace {

using Size = decltype(sizeof(0));

constexpr Size kLanes = Kernels::kLanes;

using Floats [[gnu::vector_size(kLanes * sizeof(float))]] = float;
using Half [[gnu::vector_size(kLanes * sizeof(float) / 2)]] = float;
using Quarter [[gnu::vector_size(kLanes * sizeof(float) / 4)]] = float;

// NOLINTBEGIN(cppcoreguidelines-pro-bounds-pointer-arithmetic)

// Vectors are passed by reference: how they are passed by value depends on the instruction set.
[[gnu::always_inline]] inline void load(const float* from, Floats& to) {
  __builtin_memcpy(&to, from, sizeof(to));
}

[[gnu::always_inline]] inline void store(const Floats& from, float* to) {
  __builtin_memcpy(to, &from, sizeof(from));
}

[[gnu::always_inline]] inline float sum(const Floats& v) {
  const Half half = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                    __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  const Quarter quarter = __builtin_shufflevector(half, half, 0, 1, 2, 3) +
                          __builtin_shufflevector(half, half, 4, 5, 6, 7);
  return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

template <Size kBlocks>
[[gnu::always_inline]] inline void affine_tile(const float* weights, const float* bias,
                                               const float* input, float* output, Size inputs) {
  Floats sums[kBlocks];  // stays in registers
#pragma GCC unroll 8
  for (Size block = 0; block < kBlocks; ++block) {
    load(bias + block * kLanes, sums[block]);
  }
  for (Size i = 0; i < inputs; ++i) {
#pragma GCC unroll 8
    for (Size block = 0; block < kBlocks; ++block) {
      Floats w;
      load(weights + block * kLanes, w);
      sums[block] += w * input[i];
    }
    weights += kBlocks * kLanes;
  }
#pragma GCC unroll 8
  for (Size block = 0; block < kBlocks; ++block) {
    store(sums[block], output + block * kLanes);
  }
}

void affine(const float* weights, const float* bias, const float* input, float* output, Size inputs,
            Size blocks) {
  while (blocks > 0) {
    const Size tile = tile_blocks(blocks);
    switch (tile) {
      case 8:
        affine_tile<8>(weights, bias, input, output, inputs);
        break;
      case 4:
        affine_tile<4>(weights, bias, input, output, inputs);
        break;
      case 2:
        affine_tile<2>(weights, bias, input, output, inputs);
        break;
      default:
        affine_tile<1>(weights, bias, input, output, inputs);
    }
    weights += tile * kLanes * inputs;
    bias += tile * kLanes;
    output += tile * kLanes;
    blocks -= tile;
  }
}

void add(float* sums, const float* addend, Size blocks) {
  for (Size block = 0; block < blocks; ++block) {
    Floats s;
    Floats a;
    load(sums + block * kLanes, s);
    load(addend + block * kLanes, a);
    s += a;
    store(s, sums + block * kLanes);
  }
}

float add_and_dot_relu(float* sums, const float* addend, const float* weights, Size blocks) {
  Floats total = {};
  for (Size block = 0; block < blocks; ++block) {
    Floats s;
    Floats a;
    Floats w;
    load(sums + block * kLanes, s);
    load(addend + block * kLanes, a);
    load(weights + block * kLanes, w);
    s += a;
    store(s, sums + block * kLanes);
    const Floats zero = {};
    total += (s > zero ? s : zero) * w;
  }
  return sum(total);
}

Size count_below(const float* values, float bound, Size blocks) {
  int count = 0;
  for (Size i = 0; i < blocks * kLanes; ++i) {
    count += values[i] < bound ? 1 : 0;
  }
  return static_cast<Size>(count);
}

// NOLINTEND(cppcoreguidelines-pro-bounds-pointer-arithmetic)

}  // namespace

extern const Kernels NEUROSHARD_KERNELS;
const Kernels NEUROSHARD_KERNELS = {
    .affine = affine,
    .add = add,
    .add_and_dot_relu = add_and_dot_relu,
    .count_below = count_below,
};

}  // namespace neuroshard
