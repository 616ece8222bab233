// Stands in for libFuzzer where the compiler has none: mutates at random for a while, without
// looking at what is covered. Takes two of libFuzzer's options, and files to run instead.
//
// usage: TARGET [-max_total_time=SECONDS] [-seed=SEED] [FILE...]

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace {

constexpr std::size_t kMaxSize = 1U << 14U;

// NOLINTNEXTLINE(bugprone-random-generator-seed,bugprone-throwing-static-initialization)
std::mt19937_64 random_numbers;  // main seeds it; the constructor does nothing that throws
std::vector<std::uint8_t> input;

std::size_t below(std::size_t count) { return random_numbers() % count; }

/// Keeps the input that ended the process.
void save_input() {
  const std::string path = "crash-input";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(input.data()),
             static_cast<std::streamsize>(input.size()));
  std::cerr << "the input is in " << path << "\n";
}

/// A number that is on the edge of something, or any.
std::uint64_t interesting_number() {
  constexpr std::array<std::uint64_t, 12> kEdges = {0,
                                                    1,
                                                    2,
                                                    ~std::uint64_t{0},
                                                    0x7fffffff,
                                                    0x80000000,
                                                    0xffffffff,
                                                    0x7f800000,
                                                    0x7fc00000,
                                                    0x7fffffffffffffff,
                                                    0x7ff0000000000000,
                                                    0x8000000000000000};
  const std::uint64_t edge = kEdges[below(kEdges.size())];
  switch (below(4)) {
    case 0:
      return random_numbers();
    case 1:
      return below(64);
    case 2:
      return edge + below(3) - 1;
    default:
      return std::uint64_t{1} << below(64);
  }
}

}  // namespace

std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size) {
  if (size == 0) {
    return 0;
  }
  const std::size_t at = below(size);
  switch (below(6)) {
    case 0:
      data[at] ^= static_cast<std::uint8_t>(1U << below(8));
      return size;
    case 1: {  // four or eight bytes, mostly where fields are
      const std::size_t width = below(2) == 0 ? 4 : 8;
      const std::size_t start = below(4) == 0 ? at : at / 4 * 4;
      const std::uint64_t number = interesting_number();
      std::memcpy(data + start, &number, std::min(width, size - start));
      return size;
    }
    case 2: {  // cut out
      const std::size_t count = 1 + below(std::min<std::size_t>(size - at, 64));
      std::memmove(data + at, data + at + count, size - at - count);
      return size - count;
    }
    case 3: {  // put in a copy of what is there
      const std::size_t count = std::min({1 + below(64), size - at, max_size - size});
      std::memmove(data + at + count, data + at, size - at);
      return size + count;
    }
    case 4: {  // the length of a list and its elements grow or shrink together
      std::uint64_t count = 0;
      if (at + sizeof(count) > size) {
        return size;
      }
      std::memcpy(&count, data + at, sizeof(count));
      count = below(2) == 0 ? count + 1 : count - 1;
      std::memcpy(data + at, &count, sizeof(count));
      return size;
    }
    default: {  // copy from elsewhere
      const std::size_t from = below(size);
      std::memmove(data + at, data + from, 1 + below(std::min(size - at, size - from)));
      return size;
    }
  }
}

int main(int argc, char** argv) {
  std::int64_t seconds = 60;
  std::uint64_t seed = 1;
  std::vector<std::string> files;
  for (const std::string_view argument : std::vector<std::string_view>(argv + 1, argv + argc)) {
    const auto number = [&](std::string_view name, auto& value) {
      if (!argument.starts_with(name)) {
        return false;
      }
      const char* const end = argument.data() + argument.size();
      return std::from_chars(argument.data() + name.size(), end, value).ptr == end;
    };
    if (!number("-max_total_time=", seconds) && !number("-seed=", seed)) {
      files.emplace_back(argument);
    }
  }
  for (const std::string& path : files) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
  if (!files.empty()) {
    return EXIT_SUCCESS;
  }

#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_set_death_callback(save_input);
#endif
  std::set_terminate([] {
    save_input();
    std::abort();
  });
  random_numbers.seed(seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  std::size_t runs = 0;
  for (; std::chrono::steady_clock::now() < end; ++runs) {
    if (below(8) == 0) {
      input.clear();
    }
    for (std::size_t times = 1 + below(4); times > 0; --times) {
      const std::size_t size = input.size();
      input.resize(kMaxSize);
      input.resize(LLVMFuzzerCustomMutator(input.data(), size, kMaxSize,
                                           static_cast<unsigned int>(random_numbers())));
    }
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::cout << runs << " inputs in " << seconds << " s, seed " << seed << "\n";
  return EXIT_SUCCESS;
}
