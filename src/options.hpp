#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace neuroshard::bench {

inline constexpr const char* kUsage =
    "usage: neuroshard-bench CAPTURE [options]\n"
    "Plans a problem captured with `neuroshard plan --capture` or Planner.capture().\n"
    "  --threads T   threads of the search (as captured)\n"
    "  --repeat R    plans timed (5)\n"
    "  --isa NAME    instruction set: avx512, avx2, portable or neon (the widest there is)\n"
    "  --verify      fail unless every plan is the captured one\n"
    "  --json        print JSON\n";

struct Options {
  std::string capture;
  std::optional<int> threads;
  int repeat = 5;
  std::string isa;  // empty: the widest there is
  bool verify = false;
  bool json = false;
};

class UsageError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What the command line asks for, nothing if that is help. Throws UsageError.
std::optional<Options> parse_options(const std::vector<std::string_view>& arguments);

}  // namespace neuroshard::bench
