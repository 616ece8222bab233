// How long does the engine take to plan? Plans a captured problem again and again, with no Python
// in the process.

#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/capture.hpp"
#include "engine/kernels/kernels.hpp"
#include "engine/search.hpp"

namespace {

using namespace neuroshard;  // NOLINT(google-build-using-namespace)

constexpr const char* kUsage =
    "usage: neuroshard-bench CAPTURE [options]\n"
    "Plans a problem captured with `neuroshard plan --capture` or Planner.capture().\n"
    "  --threads T   threads of the search (as captured)\n"
    "  --repeat R    plans made (5)\n"
    "  --isa NAME    instruction set: avx512, avx2, portable or neon (the widest there is)\n"
    "  --verify      fail unless the plan is the captured one\n"
    "  --json        print JSON\n";

struct Options {
  std::string capture;
  std::optional<int> threads;
  int repeat = 5;
  std::string isa;
  bool verify = false;
  bool json = false;
};

class UsageError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

int parse_int(std::string_view option, std::string_view text, int low, int high) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    throw UsageError(std::string(option) + " takes a whole number between " + std::to_string(low) +
                     " and " + std::to_string(high) + ", got '" + std::string(text) + "'");
  }
  return value;
}

std::optional<Options> parse_options(const std::vector<std::string_view>& arguments) {
  Options options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    const auto value = [&] {
      if (++i == arguments.size()) {
        throw UsageError(std::string(argument) + " takes a value");
      }
      return arguments[i];
    };
    if (argument == "--help" || argument == "-h") {
      return std::nullopt;
    }
    if (argument == "--threads") {
      options.threads = parse_int(argument, value(), 1, SearchOptions::kMaxThreads);
    } else if (argument == "--repeat") {
      options.repeat = parse_int(argument, value(), 1, 1'000'000);
    } else if (argument == "--isa") {
      options.isa = value();
    } else if (argument == "--verify") {
      options.verify = true;
    } else if (argument == "--json") {
      options.json = true;
    } else if (argument.starts_with('-') || !options.capture.empty()) {
      throw UsageError("unknown option '" + std::string(argument) + "'");
    } else {
      options.capture = argument;
    }
  }
  if (options.capture.empty()) {
    throw UsageError("which capture file?");
  }
  return options;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) {
    throw std::runtime_error("cannot read " + path);
  }
  return bytes;
}

void run(const Options& options) {
  if (!options.isa.empty()) {
    use_isa(options.isa);
  }
  Capture capture = read_capture(read_file(options.capture));
  capture.options.threads = options.threads.value_or(capture.options.threads);
  std::vector<double> times;  // ms
  std::optional<Plan> plan;
  for (int i = 0; i < options.repeat; ++i) {
    Interrupt never;
    const auto start = std::chrono::steady_clock::now();
    plan = search(capture.networks, capture.problem, capture.options, never);
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
    times.push_back(time.count());
  }
  std::sort(times.begin(), times.end());
  std::cout << capture.problem.tables() << " tables on " << capture.problem.devices()
            << " devices, " << isa() << ": median " << times[times.size() / 2] << " ms, min "
            << times.front() << " ms";
  if (plan && capture.answer) {
    std::cout << "; cost " << plan->cost << " captured " << capture.answer->cost;
  }
  std::cout << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::optional<Options> options =
        parse_options(std::vector<std::string_view>(argv + 1, argv + argc));
    if (options) {
      run(*options);
    } else {
      std::cout << kUsage;
    }
    return EXIT_SUCCESS;
  } catch (const UsageError& error) {
    std::cerr << "error: " << error.what() << "\n" << kUsage;
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return EXIT_FAILURE;
  }
}
