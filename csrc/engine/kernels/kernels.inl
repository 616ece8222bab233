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

/// As many lanes as fit into a register of 32-bit numbers, or half as many for 64-bit numbers.
constexpr Size kPart = NEUROSHARD_VECTOR_BYTES / sizeof(float);

constexpr Size kHalf = kPart / 2;

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

[[gnu::always_inline]] inline bool any(const Ints& mask) {
  int bits = 0;
  for (Size lane = 0; lane < kPart; ++lane) {
    bits |= mask[lane];
  }
  return bits != 0;
}

void affine(const float* weights, const float* bias, const float* input, float* output, Size inputs,
            Size tiles) {
  for (Size tile = 0; tile < tiles; ++tile) {
    for (Size part = 0; part < kLanes; part += kPart) {
      Floats sum0 = bias[0] + Floats{};
      Floats sum1 = bias[1] + Floats{};
      Floats sum2 = bias[2] + Floats{};
      Floats sum3 = bias[3] + Floats{};
      for (Size i = 0; i < inputs; ++i) {
        Floats x;
        load(input + i * kLanes + part, x);
        const float* w = weights + i * Kernels::kTile;
        sum0 += w[0] * x;
        sum1 += w[1] * x;
        sum2 += w[2] * x;
        sum3 += w[3] * x;
      }
      store(sum0, output + 0 * kLanes + part);
      store(sum1, output + 1 * kLanes + part);
      store(sum2, output + 2 * kLanes + part);
      store(sum3, output + 3 * kLanes + part);
    }
    weights += inputs * Kernels::kTile;
    bias += Kernels::kTile;
    output += Kernels::kTile * kLanes;
  }
}

/// What the lanes ask of a device, in fp32.
struct Limits {
  Floats output_dims;
  Floats memory;
};

/// The best devices so far of every lane.
struct Best {
  Floats cost = __builtin_inff() + Floats{};
  Ints first = Ints{} - 1;  // of those that cost the same
  Ints last = Ints{} - 1;
};

template <bool kMemoryMatters>
[[gnu::always_inline]] inline void consider(const Kernels::Choice<float>& choice, Size at,
                                            const Limits& limits, const Ints& device, Best& best) {
  const Floats infinity = __builtin_inff() + Floats{};
  Floats cost;
  Floats dims;
  load(choice.cost + at, cost);
  load(choice.output_dims + at, dims);
  cost = dims <= limits.output_dims ? cost : infinity;
  if constexpr (kMemoryMatters) {
    Floats memory;
    load(choice.rounded_memory + at, memory);
    cost = memory <= limits.memory ? cost : infinity;
  }
  best.first = cost < best.cost ? device : best.first;
  best.last = cost <= best.cost ? device : best.last;
  best.cost = cost < best.cost ? cost : best.cost;
}

/// Of the devices `first` to `last` that cost the same in a lane, the one with the least memory.
[[gnu::noinline]] std::int32_t least_memory(const Kernels::Choice<float>& choice, Size lane,
                                            Size first, Size last) {
  const float cost = choice.cost[first * kLanes + lane];
  const float output_dims = choice.output_dim_limit[lane] - choice.added_output_dim[lane];
  Size best = first;
  for (Size device = first + 1; device <= last && choice.memory[best * kLanes + lane] > 0; ++device) {
    const Size at = device * kLanes + lane;
    if (choice.cost[at] == cost && choice.output_dims[at] <= output_dims &&
        choice.memory[at] <= choice.memory_limit[lane] &&
        choice.memory[at] < choice.memory[best * kLanes + lane]) {
      best = device;
    }
  }
  return static_cast<std::int32_t>(best);
}

/// Chooses for a part of the lanes. False where exact memory is needed to tell.
template <bool kMemoryMatters>
[[gnu::always_inline]] inline bool choose_by_cost(const Kernels::Choice<float>& choice, Size part,
                                                  std::int32_t* chosen) {
  Limits limits;
  Floats added;
  load(choice.added_output_dim + part, added);
  load(choice.output_dim_limit + part, limits.output_dims);
  load(choice.rounded_memory_limit + part, limits.memory);
  limits.output_dims -= added;  // exact, they are whole numbers
  Best even;  // two halves, because each comparison waits for the one before
  Best odd;
  Ints device = {};
  Size at = part;
  const Size end = choice.devices * kLanes + part;
  for (; at + kLanes < end; at += 2 * kLanes) {
    consider<kMemoryMatters>(choice, at, limits, device, even);
    device += 1;
    consider<kMemoryMatters>(choice, at + kLanes, limits, device, odd);
    device += 1;
  }
  if (at < end) {
    consider<kMemoryMatters>(choice, at, limits, device, even);
  }
  Ints first = odd.cost < even.cost ? odd.first : even.first;
  Ints last = odd.cost < even.cost ? odd.last : even.last;
  const Ints across = odd.cost == even.cost;
  first = (across & (odd.first < first)) ? odd.first : first;
  last = (across & (odd.last > last)) ? odd.last : last;
  store(first, chosen + part);
  if (any(first ^ last)) {
    for (Size lane = 0; lane < kPart; ++lane) {
      if (first[lane] >= 0 && first[lane] != last[lane]) {
        chosen[part + lane] = least_memory(choice, part + lane, static_cast<Size>(first[lane]),
                                           static_cast<Size>(last[lane]));
      }
    }
  }
  // Rounding keeps the order, so no device that is open was left out. Whether the one chosen is:
  for (Size lane = part; kMemoryMatters && lane < part + kPart; ++lane) {
    if (chosen[lane] >= 0 &&
        choice.memory[static_cast<Size>(chosen[lane]) * kLanes + lane] > choice.memory_limit[lane]) {
      return false;
    }
  }
  return true;
}

/// Chooses for half a part of the lanes, by cost and memory.
template <typename Dim>
[[gnu::always_inline]] inline void choose_by_memory(const Kernels::Choice<Dim>& choice, Size half,
                                                    std::int32_t* chosen) {
  static_assert(sizeof(long) == sizeof(std::int64_t));
  using Doubles = Vector<double, kHalf>;
  using Longs = Vector<long, kHalf>;
  const auto load_dims = [](const Dim* from, Doubles& to) {
    Vector<Dim, kHalf> dims;
    load(from, dims);
    to = __builtin_convertvector(dims, Doubles);
  };
  Doubles added;
  Doubles limit;
  Longs memory_limit;
  load_dims(choice.added_output_dim + half, added);
  load_dims(choice.output_dim_limit + half, limit);
  load(choice.memory_limit + half, memory_limit);
  const Doubles infinity = __builtin_inf() + Doubles{};
  Doubles best_cost = infinity;
  Longs best_memory = {};
  Longs best = Longs{} - 1;
  for (Size device = 0; device < choice.devices; ++device) {
    const Size at = device * kLanes + half;
    Vector<float, kHalf> narrow_cost;
    Doubles dims;
    Longs memory;
    load(choice.cost + at, narrow_cost);
    load_dims(choice.output_dims + at, dims);
    load(choice.memory + at, memory);
    Doubles cost = __builtin_convertvector(narrow_cost, Doubles);
    cost = dims + added <= limit ? cost : infinity;
    cost = memory <= memory_limit ? cost : infinity;
    const Longs better = cost == best_cost ? memory < best_memory : cost < best_cost;
    best = better ? static_cast<long>(device) + Longs{} : best;
    best_cost = better ? cost : best_cost;
    best_memory = better ? memory : best_memory;
  }
  store(__builtin_convertvector(best, Vector<std::int32_t, kHalf>), chosen + half);
}

void choose(const Kernels::Choice<float>& choice, std::int32_t* chosen) {
  for (Size part = 0; part < kLanes; part += kPart) {
    if (!(choice.memory_matters ? choose_by_cost<true>(choice, part, chosen)
                                : choose_by_cost<false>(choice, part, chosen))) {
      choose_by_memory(choice, part, chosen);
      choose_by_memory(choice, part + kHalf, chosen);
    }
  }
}

void choose_exactly(const Kernels::Choice<double>& choice, std::int32_t* chosen) {
  for (Size half = 0; half < kLanes; half += kHalf) {
    choose_by_memory(choice, half, chosen);
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

void add_row(float* sums, const float* addend, Size blocks) {
  for (Size at = 0; at < blocks * Kernels::kBlock; at += kPart) {
    Floats s;
    Floats a;
    load(sums + at, s);
    load(addend + at, a);
    s += a;
    store(s, sums + at);
  }
}

void add(float* const* sums, const float* const* addend, const float* weights, Size blocks,
         float* dot) {
  constexpr Size kBlockParts = Kernels::kBlock / kPart;
  for (Size lane = 0; lane < kLanes; ++lane) {
    Floats total[kBlockParts] = {};
    for (Size block = 0; block < blocks; ++block) {
#pragma GCC unroll 4
      for (Size part = 0; part < kBlockParts; ++part) {
        const Size at = block * Kernels::kBlock + part * kPart;
        Floats s;
        Floats a;
        load(sums[lane] + at, s);
        load(addend[lane] + at, a);
        s += a;
        store(s, sums[lane] + at);
        if (weights != nullptr) {
          Floats w;
          load(weights + at, w);
          total[part] += (s > 0.0F ? s : 0.0F) * w;
        }
      }
    }
    dot[lane] = sum_of(total);
  }
}

}  // namespace

extern const Kernels NEUROSHARD_KERNELS;
const Kernels NEUROSHARD_KERNELS = {
    .affine = affine, .choose = choose, .choose_exactly = choose_exactly,
    .add_row = add_row, .add = add};

}  // namespace neuroshard
