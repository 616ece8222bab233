#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace neuroshard {

/// Things of one kind that are computed side by side: inputs of a network, greedy passes.
inline constexpr std::size_t kLanes = 16;

/// One value for each of them.
template <typename T>
using PerLane = std::array<T, kLanes>;

/// The inner loops of the engine, compiled once for each instruction set.
///
/// All are compiled from one source, kernels.inl, which fixes the order of every addition and fuses
/// none: whatever the instruction set, the results are the same to the last bit.
struct Kernels {
  static constexpr std::size_t kTile = 8;    // outputs that `affine` computes together
  static constexpr std::size_t kBlock = 16;  // floats that `add` handles together

  /// Writes the numbers of the inputs of which some lane holds another value than +0 to `used`, in
  /// order, and returns how many they are; `input` is [inputs][kLanes].
  std::size_t (*used_inputs)(const float* input, std::size_t inputs, std::int32_t* used);

  /// output = max(weights * input + bias, least), where inputs that are not listed as used are 0;
  /// `input` is [inputs][kLanes], `output` [tiles * kTile][kLanes], `weights`
  /// [tiles][inputs][kTile].
  void (*affine)(const float* weights, const float* bias, float least, const float* input,
                 const std::int32_t* used, std::size_t used_count, float* output,
                 std::size_t inputs, std::size_t tiles);

  struct Devices {
    std::size_t count;
    const float* cost;         // [count][kLanes]
    const float* memory;       // [count][kLanes]
    const float* output_dims;  // [count][kLanes]
  };

  /// For each lane the first and the last device of the lowest cost, of those whose memory and
  /// output dims do not exceed the limits of the lane. `first` is -1 where there is none; `last`
  /// then means nothing.
  void (*choose)(const Devices& devices, const float* memory_limit, const float* output_dim_limit,
                 std::int32_t* first, std::int32_t* last);

  /// For each lane result = sums + addend, `blocks * kBlock` floats each; `result` may be `sums`.
  /// Where there are weights, `dot` is the dot product of relu(result) and them, else 0.
  void (*add)(const float* const* sums, const float* const* addend, float* const* result,
              const float* weights, std::size_t blocks, float* dot);
};

/// `count` rounded up to a multiple of `multiple`.
constexpr std::size_t round_up(std::size_t count, std::size_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

/// The kernels in use: those of the widest instruction set that the processor has, unless
/// `use_isa` chose others.
const Kernels& kernels();

/// Names of the instruction sets that this build has kernels for and this processor can run, widest
/// first; the last one is there on every processor of the architecture.
std::vector<std::string_view> supported_isas();

/// The name of the instruction set in use.
std::string_view isa();

/// Uses another instruction set from now on, in all threads; results do not change. Throws
/// std::invalid_argument for names that `supported_isas` lacks.
void use_isa(std::string_view name);

}  // namespace neuroshard
