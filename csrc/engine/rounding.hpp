#pragma once

#include <cstddef>
#include <vector>

#include "affine_layer.hpp"
#include "network.hpp"

namespace neuroshard {

/// The most by which a sum of `terms` fp32 products differs from the exact sum, for each unit of
/// the sum of the products' magnitudes, whatever the order: n u / (1 - n u) with u = 2^-24.
/// Infinite for more terms than that formula is for.
double rounding_factor(double terms);

/// Of a number that the engine computes in fp32: how large its exact value can be, and how far the
/// computed one can be from that.
struct Rounded {
  double magnitude = 0.0;
  double error = 0.0;
};

/// Of the outputs of a layer, of the inputs of a network once standardised, and of its outputs.
std::vector<Rounded> rounded(const AffineLayer& layer, const std::vector<Rounded>& inputs);
std::vector<Rounded> rounded(const Network& network, std::vector<Rounded> inputs);

/// Numbers that something lies between.
struct Range {
  double low = 0.0;
  double high = 0.0;

  double width() const { return high - low; }
};

/// Ranges of the exact outputs of a layer, and of a network, for inputs in these ranges.
std::vector<Range> ranges(const AffineLayer& layer, const std::vector<Range>& inputs);
std::vector<Range> ranges(const Network& network, std::vector<Range> inputs);

}  // namespace neuroshard
