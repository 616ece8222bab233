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
  static constexpr std::size_t kTile = 4;    // outputs that `affine` computes together
  static constexpr std::size_t kBlock = 16;  // floats that `add` handles together

  /// The devices of kLanes greedy passes, and what the next shard of each pass asks of them.
  template <typename Dim>
  struct Choice {
    std::size_t devices;
    const float* cost;                  // [devices][kLanes], ms
    const Dim* output_dims;             // [devices][kLanes], fp32 numbers a sample
    const Dim* added_output_dim;        // [kLanes]; with it output_dims ...
    const Dim* output_dim_limit;        // [kLanes] ... must not exceed this
    const std::int64_t* memory;         // [devices][kLanes], bytes
    const std::int64_t* memory_limit;   // [kLanes], what memory must not exceed
    const float* rounded_memory;        // the same in fp32
    const float* rounded_memory_limit;  // the same in fp32
    bool memory_matters;                // whether the memory of any device exceeds its limit
  };

  /// output = weights * input + bias; `input` is [inputs][kLanes], `output` [tiles * kTile][kLanes],
  /// `weights` [tiles][inputs][kTile].
  void (*affine)(const float* weights, const float* bias, const float* input, float* output,
                 std::size_t inputs, std::size_t tiles);

  /// For each lane the open device with the lowest cost, of these the one with the least memory in
  /// use, of these the first; -1 where none is open.
  /// Output dims that fp32 cannot tell apart exactly are doubles.
  void (*choose)(const Choice<float>& choice, std::int32_t* chosen);
  void (*choose_exactly)(const Choice<double>& choice, std::int32_t* chosen);

  /// sums += addend, `blocks * kBlock` floats.
  void (*add_row)(float* sums, const float* addend, std::size_t blocks);

  /// For each lane sums += addend, `blocks * kBlock` floats each. Where there are weights, `dot` is
  /// the dot product of relu(sums) and them.
  void (*add)(float* const* sums, const float* const* addend, const float* weights,
              std::size_t blocks, float* dot);
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
