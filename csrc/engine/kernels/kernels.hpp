#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace neuroshard {

/// The inner loops of the engine, compiled once for each instruction set.
///
/// All are compiled from one source, kernels.inl, which fixes the order of every addition and fuses
/// none: whatever the instruction set, the results are the same to the last bit.
struct Kernels {
  static constexpr std::size_t kLanes = 16;  // fp32 numbers computed side by side

  /// output = weights * input + bias for `blocks * kLanes` outputs.
  /// `weights` holds [outputs][inputs] as [tiles][inputs][lanes of the tile], see `tile_blocks`.
  void (*affine)(const float* weights, const float* bias, const float* input, float* output,
                 std::size_t inputs, std::size_t blocks);

  /// sums += addend, `blocks * kLanes` numbers.
  void (*add)(float* sums, const float* addend, std::size_t blocks);

  /// sums += addend; the dot product of relu(sums) and `weights`.
  float (*add_and_dot_relu)(float* sums, const float* addend, const float* weights,
                            std::size_t blocks);

  /// How many of `values`, `blocks * kLanes` numbers, are below `bound`.
  std::size_t (*count_below)(const float* values, float bound, std::size_t blocks);
};

/// Blocks of outputs that `affine` computes together where `blocks` are left: 8, 4, 2 or 1.
constexpr std::size_t tile_blocks(std::size_t blocks) {
  return blocks >= 8 ? 8 : blocks >= 4 ? 4 : blocks >= 2 ? 2 : 1;
}

/// `count` rounded up to whole blocks of lanes.
constexpr std::size_t padded(std::size_t count) {
  return (count + Kernels::kLanes - 1) / Kernels::kLanes * Kernels::kLanes;
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
