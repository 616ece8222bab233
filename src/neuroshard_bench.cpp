// How long does the engine take to plan, and how near is that to what the processor could do at
// best? Plans a captured problem again and again, with no Python in the process.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "engine/capture.hpp"
#include "engine/interrupt.hpp"
#include "engine/kernels/kernels.hpp"
#include "engine/search.hpp"
#include "memory.hpp"
#include "options.hpp"
#include "report.hpp"
#include "search_counts.hpp"
#include "throughput.hpp"

namespace {

using namespace neuroshard;         // NOLINT(google-build-using-namespace)
using namespace neuroshard::bench;  // NOLINT(google-build-using-namespace)

std::string read_file(const std::string& path) {
  if (!std::filesystem::is_regular_file(path)) {
    throw std::runtime_error(std::filesystem::exists(path) ? "not a file" : "no such file");
  }
  std::string bytes(std::filesystem::file_size(path), '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) {
    throw std::runtime_error("cannot be read");
  }
  return bytes;
}

std::optional<Plan> plan(const Capture& capture) {
  Interrupt never;
  return search(capture.networks, capture.problem, capture.options, never);
}

/// Throws std::runtime_error unless the plan is the captured one.
void verify(const std::optional<Plan>& plan, const std::optional<Capture::Answer>& answer) {
  constexpr double kTolerance = 1e-6;
  const auto refuse = [](const std::string& difference) {
    throw std::runtime_error("the plan is not the captured one: " + difference);
  };
  if (!plan || !answer) {
    if (plan) {
      refuse("no plan was found then");
    }
    if (answer) {
      refuse("no plan is found now");
    }
    return;
  }
  if (!(std::abs(plan->cost - answer->cost) <= kTolerance * std::abs(answer->cost))) {
    refuse("its cost is " + std::to_string(plan->cost) + " ms instead of " +
           std::to_string(answer->cost) + " ms");
  }
  if (plan->column_splits != answer->column_splits) {
    refuse("other shards are split");
  }
  if (plan->placement != answer->placement) {
    refuse("shards are on other devices");
  }
}

Report measure(const Options& options) {
  Capture capture = read_capture(read_file(options.capture));
  capture.options.threads = options.threads.value_or(capture.options.threads);
  Report report{};
  report.capture = options.capture;
  report.tables = capture.problem.tables();
  report.devices = capture.problem.devices();
  report.isa = isa();
  report.threads = capture.options.threads;
  report.verified = options.verify;

  const MemoryGrowth growth;
  for (int i = 0; i < options.repeat; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const std::optional<Plan> found = plan(capture);
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
    report.times.push_back(time.count());
    if (options.verify) {
      verify(found, capture.answer);
    }
    report.cost = found ? std::optional(found->cost) : std::nullopt;
  }
  report.peak_bytes = growth.peak_bytes();
  std::sort(report.times.begin(), report.times.end());
  if (capture.answer) {
    report.captured_cost = capture.answer->cost;
  }

  report.counts = count(capture.networks, capture.problem, capture.options);
  const std::unique_ptr<CommunicationCosts> communication =
      CommunicationCosts::make(capture.networks.communication(), capture.problem.devices());
  report.multiply_adds =
      report.counts.distinct_sets * capture.networks.set().network().multiply_adds() +
      report.counts.distinct_plans * communication->multiply_adds();
  report.throughput = measure_throughput();
  return report;
}

void run(const Options& options) {
  if (!options.isa.empty()) {
    try {
      use_isa(options.isa);
    } catch (const std::invalid_argument& error) {
      throw UsageError(error.what());
    }
  }
  try {
    const Report report = measure(options);
    (options.json ? print_json : print_text)(report, std::cout);
  } catch (const std::bad_alloc&) {
    throw std::runtime_error(options.capture + ": not enough memory to plan this");
  } catch (const std::exception& error) {
    throw std::runtime_error(options.capture + ": " + error.what());
  }
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
    if (!std::cout.flush()) {
      throw std::runtime_error("cannot write the output");
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
