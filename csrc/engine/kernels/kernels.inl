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

template <typename T, Size kCount>
using Vector [[gnu::vector_size(kCount * sizeof(T))]] = T;

// Vectors are passed by reference: how they are passed by value depends on the instruction set.
template <typename V, typename T>
[[gnu::always_inline]] inline void load(const T* from, V& to) {
  __builtin_memcpy(&to, from, sizeof(to));
}

template <typename V, typename T>
[[gnu::always_inline]] inline void store(const V& from, T* to) {
  __builtin_memcpy(to, &from, sizeof(from));
}

void affine(const float* weights, const float* bias, const float* input, float* output, Size inputs,
            Size tiles) {
  using Lanes = Vector<float, kLanes>;
  for (Size tile = 0; tile < tiles; ++tile) {
    Lanes sum0 = bias[0] + Lanes{};
    Lanes sum1 = bias[1] + Lanes{};
    Lanes sum2 = bias[2] + Lanes{};
    Lanes sum3 = bias[3] + Lanes{};
    Lanes sum4 = bias[4] + Lanes{};
    Lanes sum5 = bias[5] + Lanes{};
    Lanes sum6 = bias[6] + Lanes{};
    Lanes sum7 = bias[7] + Lanes{};
    for (Size i = 0; i < inputs; ++i, weights += Kernels::kTile) {
      Lanes x;
      load(input + i * kLanes, x);
      sum0 += weights[0] * x;
      sum1 += weights[1] * x;
      sum2 += weights[2] * x;
      sum3 += weights[3] * x;
      sum4 += weights[4] * x;
      sum5 += weights[5] * x;
      sum6 += weights[6] * x;
      sum7 += weights[7] * x;
    }
    store(sum0, output + 0 * kLanes);
    store(sum1, output + 1 * kLanes);
    store(sum2, output + 2 * kLanes);
    store(sum3, output + 3 * kLanes);
    store(sum4, output + 4 * kLanes);
    store(sum5, output + 5 * kLanes);
    store(sum6, output + 6 * kLanes);
    store(sum7, output + 7 * kLanes);
    bias += Kernels::kTile;
    output += Kernels::kTile * kLanes;
  }
}

using Doubles = Vector<double, kLanes>;
using Longs = Vector<long, kLanes>;
static_assert(sizeof(long) == sizeof(std::int64_t));

[[gnu::always_inline]] inline bool any(const Longs& mask) {
  long bits = 0;
  for (Size lane = 0; lane < kLanes; ++lane) {
    bits |= mask[lane];
  }
  return bits != 0;
}

void choose(const Kernels::Choice& choice, std::int64_t* chosen) {
  const Doubles infinity = __builtin_inf() + Doubles{};
  Doubles added;
  Doubles limit;
  load(choice.added_output_dim, added);
  load(choice.output_dim_limit, limit);

  // Where a cost occurs twice, memory decides; that is rare, so it is looked at only then.
  Doubles best_cost = infinity;
  Longs best = Longs{} - 1;
  Longs tie = {};
  if (!choice.memory_matters) {
    for (Size device = 0; device < choice.devices; ++device) {
      Doubles cost;
      Doubles dims;
      load(choice.cost + device * kLanes, cost);
      load(choice.output_dims + device * kLanes, dims);
      cost = dims + added <= limit ? cost : infinity;
      tie = cost == best_cost ? Longs{} - 1 : tie;
      tie = cost < best_cost ? Longs{} : tie;
      best = cost < best_cost ? static_cast<long>(device) + Longs{} : best;
      best_cost = cost < best_cost ? cost : best_cost;
    }
    if (!any(tie)) {
      store(best, chosen);
      return;
    }
  }

  Longs memory_limit;
  load(choice.memory_limit, memory_limit);
  best_cost = infinity;
  best = Longs{} - 1;
  Longs best_memory = {};
  for (Size device = 0; device < choice.devices; ++device) {
    Doubles cost;
    Doubles dims;
    Longs memory;
    load(choice.cost + device * kLanes, cost);
    load(choice.output_dims + device * kLanes, dims);
    load(choice.memory + device * kLanes, memory);
    cost = dims + added <= limit ? cost : infinity;
    cost = memory <= memory_limit ? cost : infinity;
    const Longs less = cost == best_cost ? memory < best_memory : cost < best_cost;
    best = less ? static_cast<long>(device) + Longs{} : best;
    best_cost = less ? cost : best_cost;
    best_memory = less ? memory : best_memory;
  }
  store(best, chosen);
}

using Block = Vector<float, Kernels::kBlock>;

[[gnu::always_inline]] inline float sum(const Block& v) {
  const Vector<float, 8> half = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                                __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  const Vector<float, 4> quarter = __builtin_shufflevector(half, half, 0, 1, 2, 3) +
                                   __builtin_shufflevector(half, half, 4, 5, 6, 7);
  return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

void add(float* const* sums, const float* const* addend, const float* weights, Size blocks,
         float* dot) {
  for (Size lane = 0; lane < kLanes; ++lane) {
    Block total = {};
    for (Size block = 0; block < blocks; ++block) {
      Block s;
      Block a;
      load(sums[lane] + block * Kernels::kBlock, s);
      load(addend[lane] + block * Kernels::kBlock, a);
      s += a;
      store(s, sums[lane] + block * Kernels::kBlock);
      if (weights != nullptr) {
        Block w;
        load(weights + block * Kernels::kBlock, w);
        total += (s > 0.0F ? s : 0.0F) * w;
      }
    }
    dot[lane] = sum(total);
  }
}

}  // namespace

extern const Kernels NEUROSHARD_KERNELS;
const Kernels NEUROSHARD_KERNELS = {.affine = affine, .choose = choose, .add = add};

}  // namespace neuroshard
