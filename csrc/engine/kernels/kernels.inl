// The engine's inner loops, included by one source file for each instruction set, which defines
// - NEUROSHARD_KERNELS, the name of its table of kernels,
// - NEUROSHARD_VECTOR_BYTES, the size of the processor's vector registers.
//
// Everything here has internal linkage and nothing comes from the standard library: a function that
// the linker may share between source files must not be compiled for a processor that may not be
// there. Vectors are a language extension that gcc and clang know.

#include "kernels.hpp"

namespace neuroshard {

namespace {

using Size = decltype(sizeof(0));

/// As many lanes as fit into a register.
constexpr Size kPart = NEUROSHARD_VECTOR_BYTES / sizeof(float);

template <typename T, Size kCount>
using Vector [[gnu::vector_size(kCount * sizeof(T))]] = T;
using Floats = Vector<float, kPart>;
using Ints = Vector<int, kPart>;

// Vectors are passed by reference: how they are passed by value depends on the instruction set.
template <typename T, typename V>
[[gnu::always_inline]] inline void load(const T* from, V& to) {
  __builtin_memcpy(&to, from, sizeof(to));
}

template <typename T, typename V>
[[gnu::always_inline]] inline void store(const V& from, T* to) {
  __builtin_memcpy(to, &from, sizeof(from));
}

// Halves of a register, until what is left can be handled as numbers.
using Ints4 [[gnu::vector_size(16)]] = int;
using Ints8 [[gnu::vector_size(32)]] = int;
using Ints16 [[gnu::vector_size(64)]] = int;
using Longs2 [[gnu::vector_size(16)]] = long long;

[[gnu::always_inline]] inline bool any_bit(const Ints4& v) {
  Longs2 halves;
  load(&v, halves);
  return (halves[0] | halves[1]) != 0;
}

[[gnu::always_inline]] inline bool any_bit(const Ints8& v) {
  const Ints4 half =
      __builtin_shufflevector(v, v, 0, 1, 2, 3) | __builtin_shufflevector(v, v, 4, 5, 6, 7);
  return any_bit(half);
}

[[gnu::always_inline]] inline bool any_bit(const Ints16& v) {
  const Ints8 half = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) |
                     __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  return any_bit(half);
}

std::size_t used_inputs(const float* input, Size inputs, std::int32_t* used) {
  Size count = 0;
  for (Size i = 0; i < inputs; ++i) {
    Ints bits = {};
    for (Size part = 0; part < kLanes; part += kPart) {
      Ints x;
      load(input + i * kLanes + part, x);
      bits |= x;
    }
    used[count] = static_cast<std::int32_t>(i);
    count += any_bit(bits) ? 1 : 0;
  }
  return count;
}

void affine(const float* weights, const float* bias, float least, const float* input,
            const std::int32_t* used, Size used_count, float* output, Size inputs, Size tiles) {
  for (Size tile = 0; tile < tiles; ++tile) {
    for (Size part = 0; part < kLanes; part += kPart) {
      Floats sums[Kernels::kTile];
#pragma GCC unroll 16
      for (Size i = 0; i < Kernels::kTile; ++i) {
        sums[i] = bias[i] + Floats{};
      }
      for (Size k = 0; k < used_count; ++k) {
        const auto i = static_cast<Size>(used[k]);
        Floats x;
        load(input + i * kLanes + part, x);
        const float* w = weights + i * Kernels::kTile;
#pragma GCC unroll 16
        for (Size j = 0; j < Kernels::kTile; ++j) {
          sums[j] += w[j] * x;
        }
      }
#pragma GCC unroll 16
      for (Size i = 0; i < Kernels::kTile; ++i) {
        store(sums[i] < least ? least + Floats{} : sums[i], output + i * kLanes + part);
      }
    }
    weights += inputs * Kernels::kTile;
    bias += Kernels::kTile;
    output += Kernels::kTile * kLanes;
  }
}

/// The best devices so far of every lane.
struct Best {
  Floats cost = __builtin_inff() + Floats{};
  Ints first = Ints{} - 1;  // of those that cost the same
  Ints last = Ints{} - 1;
};

[[gnu::always_inline]] inline void consider(const Kernels::Devices& devices, Size at,
                                            const Floats& memory_limit, const Floats& dims_limit,
                                            const Ints& device, Best& best) {
  const Floats infinity = __builtin_inff() + Floats{};
  Floats cost;
  Floats memory;
  Floats dims;
  load(devices.cost + at, cost);
  load(devices.memory + at, memory);
  load(devices.output_dims + at, dims);
  cost = dims <= dims_limit ? cost : infinity;
  cost = memory <= memory_limit ? cost : infinity;
  best.first = cost < best.cost ? device : best.first;
  best.last = cost <= best.cost ? device : best.last;
  best.cost = cost < best.cost ? cost : best.cost;
}

void choose(const Kernels::Devices& devices, const float* memory_limit,
            const float* output_dim_limit, std::int32_t* first, std::int32_t* last) {
  for (Size part = 0; part < kLanes; part += kPart) {
    Floats memory;
    Floats dims;
    load(memory_limit + part, memory);
    load(output_dim_limit + part, dims);
    Best even;  // two halves, because each comparison waits for the one before
    Best odd;
    Ints device = {};
    Size at = part;
    const Size end = devices.count * kLanes + part;
    for (; at + kLanes < end; at += 2 * kLanes) {
      consider(devices, at, memory, dims, device, even);
      device += 1;
      consider(devices, at + kLanes, memory, dims, device, odd);
      device += 1;
    }
    if (at < end) {
      consider(devices, at, memory, dims, device, even);
    }
    const Ints equal = odd.cost == even.cost;
    Ints lowest = odd.cost < even.cost ? odd.first : even.first;
    Ints highest = odd.cost < even.cost ? odd.last : even.last;
    lowest = (equal & (odd.first < lowest)) ? odd.first : lowest;
    highest = (equal & (odd.last > highest)) ? odd.last : highest;
    store(lowest, first + part);
    store(highest, last + part);
  }
}

// The sum of Kernels::kBlock floats: whatever the registers hold, the upper half is added to the
// lower one until one number is left.

using Floats4 [[gnu::vector_size(16)]] = float;
using Floats8 [[gnu::vector_size(32)]] = float;
using Floats16 [[gnu::vector_size(64)]] = float;

[[gnu::always_inline]] inline float sum(const Floats4& v) { return (v[0] + v[2]) + (v[1] + v[3]); }

[[gnu::always_inline]] inline float sum(const Floats8& v) {
  const Floats4 half =
      __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
  return sum(half);
}

[[gnu::always_inline]] inline float sum(const Floats16& v) {
  const Floats8 half = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                       __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  return sum(half);
}

template <Size kCount>
[[gnu::always_inline]] inline float sum_of(Floats (&parts)[kCount]) {
  for (Size count = kCount; count > 1; count /= 2) {
    for (Size i = 0; i < count / 2; ++i) {
      parts[i] += parts[i + count / 2];
    }
  }
  return sum(parts[0]);
}

/// `add` for kBlocks blocks, known when compiled, or for `blocks` where kBlocks is 0.
template <Size kBlocks>
[[gnu::always_inline]] inline void add_blocks(const float* const* sums, const float* const* addend,
                                              float* const* result, const float* weights,
                                              Size blocks, float* dot) {
  constexpr Size kBlockParts = Kernels::kBlock / kPart;
  for (Size lane = 0; lane < kLanes; ++lane) {
    const float* const from = sums[lane];
    const float* const more = addend[lane];
    float* const to = result[lane];
    Floats total[kBlockParts] = {};
    const Size count = kBlocks > 0 ? kBlocks : blocks;
#pragma GCC unroll 8
    for (Size block = 0; block < count; ++block) {
#pragma GCC unroll 4
      for (Size part = 0; part < kBlockParts; ++part) {
        const Size at = block * Kernels::kBlock + part * kPart;
        Floats s;
        Floats a;
        load(from + at, s);
        load(more + at, a);
        s += a;
        store(s, to + at);
        if (weights != nullptr) {
          Floats w;
          load(weights + at, w);
          total[part] += (s < 0.0F ? 0.0F : s) * w;  // NaN stays
        }
      }
    }
    dot[lane] = sum_of(total);
  }
}

void add(const float* const* sums, const float* const* addend, float* const* result,
         const float* weights, Size blocks, float* dot) {
  constexpr Size kUsual = 64 / Kernels::kBlock;  // the published network is 64 wide
  if (blocks == kUsual && weights != nullptr) {
    add_blocks<kUsual>(sums, addend, result, weights, blocks, dot);
  } else {
    add_blocks<0>(sums, addend, result, weights, blocks, dot);
  }
}

}  // namespace

extern const Kernels NEUROSHARD_KERNELS;
const Kernels NEUROSHARD_KERNELS = {
    .used_inputs = used_inputs, .affine = affine, .choose = choose, .add = add};

}  // namespace neuroshard
