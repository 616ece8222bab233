// Fuzz target: read_capture on hostile bytes, and the search on what it lets pass. Built with
// libFuzzer where the compiler is clang, else with driver.cpp.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/capture.hpp"
#include "engine/communication.hpp"
#include "engine/interrupt.hpp"
#include "engine/search.hpp"
#include "engine/shards.hpp"
#include "fuzz.hpp"

// Of the address sanitizer; GCC has it, but not the header.
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void*,
                                                                             std::size_t),
                                                         void (*free_hook)(const volatile void*));

namespace {

using namespace neuroshard;  // NOLINT(google-build-using-namespace)

std::size_t allocated = 0;  // bytes, since the reader started

void count_allocation(const volatile void* /*memory*/, std::size_t size) { allocated += size; }
void ignore_free(const volatile void* /*memory*/) {}

AffineLayer layer(std::size_t inputs, std::size_t outputs) {
  std::vector<float> weights(inputs * outputs);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    weights[i] = static_cast<float>(i % 7) / 4.0F - 0.5F;
  }
  return {weights, std::vector<float>(outputs, 0.25F), inputs};
}

Network network(const std::vector<std::size_t>& sizes) {
  std::vector<AffineLayer> layers;
  for (std::size_t i = 1; i < sizes.size(); ++i) {
    layers.push_back(layer(sizes[i - 1], sizes[i]));
  }
  return {std::move(layers), std::vector<float>(sizes.front(), 0.5F),
          std::vector<float>(sizes.front(), 2.0F)};
}

Network plain(std::vector<AffineLayer> layers) { return {std::move(layers), {}, {}}; }

CommunicationNetworks for_two_devices() {
  return PerCountCommunication({{2, network({4, 3, 2})}}, {{2, network({2, 2})}});
}

CommunicationNetworks for_any_devices() {
  return SharedCommunication(
      network({SharedCommunication::kForwardFeatures, 3, 2}), plain({layer(6, 3), layer(3, 1)}),
      network({SharedCommunication::kBackwardFeatures, 2}), plain({layer(6, 1)}), 2, 64);
}

/// A sound capture to begin with: three tables, two devices.
std::string sound_capture(CommunicationNetworks communication) {
  const CostNetworks networks(network({2, 3, 2}), plain({layer(2, 3), layer(3, 1)}),
                              std::move(communication));
  const Problem problem({.features = {0, 1, 0, 2, 0, 3},
                         .features_per_column = {1, 0, 1, 0, 1, 0},
                         .features_per_doubling = {0, 0.5},
                         .widths = {8, 16, 4},
                         .output_widths = {1, 0.5, 2},
                         .bytes_per_column = {10, 20, 30},
                         .bytes_fixed = {1, 0, 2}},
                        {.memory_bytes = {400, 300},
                         .least_widths = {0, 8, 0},
                         .split_widths = {4, 0, 0},
                         .pinned = {Problem::kAnyDevice, Problem::kAnyDevice, 1}});
  const SearchOptions options = {
      .beam_width = 2, .candidates = 2, .max_splits = 2, .grid_steps = 3, .threads = 1};
  Interrupt never;
  return write_capture(networks, problem, options, search(networks, problem, options, never));
}

// magic, version, length of the payload, checksum, payload: see engine/capture.cpp.
constexpr std::size_t kLengthAt = 12;
constexpr std::size_t kChecksumAt = 20;
constexpr std::size_t kPayloadAt = 28;

/// Makes length and checksum right, without which the reader would look no further.
void seal(std::uint8_t* bytes, std::size_t size) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (std::size_t i = kPayloadAt; i < size; ++i) {
    hash = (hash ^ bytes[i]) * 0x100000001b3;
  }
  const std::uint64_t length = size - kPayloadAt;
  std::memcpy(bytes + kLengthAt, &length, sizeof(length));
  std::memcpy(bytes + kChecksumAt, &hash, sizeof(hash));
}

[[noreturn]] void fail(std::string_view what) {
  std::cerr << "fuzz_capture: " << what << "\n";
  std::abort();
}

std::optional<Capture> read(std::string_view bytes) {
  try {
    return read_capture(bytes);
  } catch (const std::invalid_argument&) {
    return std::nullopt;  // refused, as it should
  }
}

/// Plans what can be planned in no time.
void plan(const Capture& capture) {
  const Problem& problem = capture.problem;
  if (problem.tables() > 8 || problem.devices() > 8 || problem.most_added() > 8) {
    return;
  }
  SearchOptions options = capture.options;
  options.beam_width = std::min(options.beam_width, 2);
  options.candidates = std::min(options.candidates, 3);
  options.max_splits = std::min(options.max_splits, 2);
  options.grid_steps = std::min(options.grid_steps, 4);
  options.threads = std::min(options.threads, 2);
  Interrupt never;
  std::optional<Plan> found;
  try {
    found = search(capture.networks, problem, options, never);
  } catch (const std::invalid_argument&) {
    return;  // networks that give no finite cost
  }
  if (!found) {
    return;
  }
  if (!std::isfinite(found->cost)) {
    fail("a plan without a finite cost");
  }
  try {
    check_constraints(problem, split_shards(problem, found->column_splits), found->placement);
  } catch (const std::invalid_argument&) {
    fail("a plan that breaks a constraint");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const int hooks = __sanitizer_install_malloc_and_free_hooks(count_allocation, ignore_free);
  if (hooks == 0) {
    fail("allocations cannot be counted");
  }
  allocated = 0;
  const std::optional<Capture> capture = read({reinterpret_cast<const char*>(data), size});
  // Weights are kept in several layouts, and a network has buffers for its widest layer.
  constexpr std::size_t kTimesTheFile = 100;
  constexpr std::size_t kBesides = 1U << 16U;
  if (allocated > kTimesTheFile * size + kBesides) {
    fail("the reader allocated " + std::to_string(allocated) + " bytes for a file of " +
         std::to_string(size));
  }
  if (capture) {
    plan(*capture);
  }
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned int seed) {
  static const std::array sounds = {sound_capture(for_two_devices()),
                                    sound_capture(for_any_devices())};
  if (size < kPayloadAt || seed % 8 == 0) {  // start anew
    const std::string& sound = sounds[seed / 8 % sounds.size()];
    size = std::min(sound.size(), max_size);
    std::memcpy(data, sound.data(), size);
  }
  if (seed % 64 == 1) {  // header and all
    return LLVMFuzzerMutate(data, size, max_size);
  }
  size = kPayloadAt + LLVMFuzzerMutate(data + kPayloadAt, size - kPayloadAt, max_size - kPayloadAt);
  seal(data, size);
  return size;
}
