// How long does the engine take to plan? Plans one seeded synthetic problem again and again with
// randomly initialised networks of the published layer sizes, and prints times, cost and splits.

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/cost_networks.hpp"
#include "engine/problem.hpp"
#include "engine/search.hpp"

namespace {

using namespace neuroshard;  // NOLINT(google-build-using-namespace)

constexpr int kFeatures = 20;
constexpr int kDimColumn = 17;

constexpr const char* kUsage =
    "usage: neuroshard-bench [options]\n"
    "Plans a synthetic problem and prints the planning time; no data is read.\n"
    "  --tables N       embedding tables (50)\n"
    "  --devices D      devices (4)\n"
    "  --threads T      threads of the search (1)\n"
    "  --repeat R       plans made (5)\n"
    "  --beam-width K   split sequences kept (3)\n"
    "  --candidates N   largest and dearest shards tried for a split (10)\n"
    "  --max-splits L   rounds of splits (10)\n"
    "  --grid-steps M   dimension limits tried (11)\n"
    "  --seed S         seed of tables and networks (0)\n"
    "  --json           print JSON\n";

struct Options {
  int tables = 50;
  int devices = 4;
  int repeat = 5;
  int seed = 0;
  SearchOptions search;
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
  struct Number {
    int* value;
    int low;
    int high;
  };
  Options options;
  const std::map<std::string_view, Number> numbers = {
      {"--tables", {&options.tables, 1, 1'000'000}},
      {"--devices", {&options.devices, 1, 4096}},
      {"--threads", {&options.search.threads, 1, SearchOptions::kMaxThreads}},
      {"--repeat", {&options.repeat, 1, 1'000'000}},
      {"--beam-width", {&options.search.beam_width, 1, SearchOptions::kMaxBeamWidth}},
      {"--candidates", {&options.search.candidates, 1, SearchOptions::kMaxCandidates}},
      {"--max-splits", {&options.search.max_splits, 0, SearchOptions::kMaxSplits}},
      {"--grid-steps", {&options.search.grid_steps, 1, SearchOptions::kMaxGridSteps}},
      {"--seed", {&options.seed, 0, 2'147'483'647}},
  };
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view name = arguments[i];
    if (name == "--help" || name == "-h") {
      return std::nullopt;
    }
    if (name == "--json") {
      options.json = true;
      continue;
    }
    const auto number = numbers.find(name);
    if (number == numbers.end()) {
      throw UsageError("unknown option '" + std::string(name) + "'");
    }
    if (++i == arguments.size()) {
      throw UsageError(std::string(name) + " takes a value");
    }
    *number->second.value = parse_int(name, arguments[i], number->second.low, number->second.high);
  }
  return options;
}

/// Seeded random numbers. The engine's figures are the same on every machine with the same C++
/// library.
class Random {
 public:
  explicit Random(int seed) : engine_(static_cast<std::uint64_t>(seed)) {}

  double uniform(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(engine_);
  }

 private:
  std::mt19937_64 engine_;
};

/// Layers of these sizes, input first, with weights of the usual initial spread. Where `positive`,
/// more input gives more output, as more shards cost a device more.
Network random_network(const std::vector<int>& sizes, bool positive, std::vector<float> mean,
                       std::vector<float> deviation, Random& random) {
  std::vector<AffineLayer> layers;
  for (std::size_t i = 1; i < sizes.size(); ++i) {
    const auto inputs = static_cast<std::size_t>(sizes[i - 1]);
    const auto outputs = static_cast<std::size_t>(sizes[i]);
    const double spread = positive ? 2.0 / sizes[i - 1] : std::sqrt(6.0 / sizes[i - 1]);
    std::vector<float> weights(inputs * outputs);
    for (float& weight : weights) {
      weight = static_cast<float>(random.uniform(positive ? 0.0 : -spread, spread));
    }
    layers.emplace_back(weights, std::vector<float>(outputs, 0.01F), inputs);
  }
  return {std::move(layers), std::move(mean), std::move(deviation)};
}

CostNetworks random_networks(int devices, Random& random) {
  std::vector<float> mean(kFeatures, 0.06F);
  std::vector<float> deviation(kFeatures, 0.1F);
  mean[kDimColumn] = 32.0F;
  deviation[kDimColumn] = 40.0F;
  mean[kDimColumn + 1] = 10.0F;  // pooling factor
  deviation[kDimColumn + 1] = 20.0F;
  mean[kDimColumn + 2] = 3e6F;  // rows
  deviation[kDimColumn + 2] = 5e6F;
  Network table = random_network({kFeatures, 128, 32}, false, mean, deviation, random);
  Network set = random_network({32, 64, 1}, true, {}, {}, random);

  const auto count = static_cast<std::size_t>(devices);
  mean.assign(2 * count, 1.0F);
  deviation.assign(2 * count, 1.0F);
  std::fill_n(mean.begin(), count, 0.0F);
  std::fill_n(deviation.begin(), count, 500.0F);
  std::map<int, Network> forward;
  std::map<int, Network> backward;
  forward.emplace(devices, random_network({2 * devices, 128, 64, 32, 16, devices}, true, mean,
                                          deviation, random));
  mean.resize(count);
  deviation.resize(count);
  backward.emplace(
      devices, random_network({devices, 128, 64, 32, 16, devices}, true, mean, deviation, random));
  return {std::move(table), std::move(set), std::move(forward), std::move(backward)};
}

Problem random_problem(int tables, int devices, Random& random) {
  Problem::Tables all;
  double total_bytes = 0.0;
  for (int table = 0; table < tables; ++table) {
    const std::int64_t width = std::int64_t{4} << static_cast<int>(random.uniform(0.0, 6.0));
    const double rows = std::round(std::exp(random.uniform(std::log(1e3), std::log(2e7))));
    const double pooling_factor = std::exp(random.uniform(0.0, std::log(100.0)));
    const std::size_t first = all.features.size();
    double total = 0.0;
    for (int bin = 0; bin < kDimColumn; ++bin) {
      all.features.push_back(static_cast<float>(random.uniform(0.0, 1.0)));
      total += static_cast<double>(all.features.back());
    }
    for (std::size_t bin = first; bin < all.features.size(); ++bin) {
      all.features[bin] /= static_cast<float>(total);
    }
    all.features.push_back(static_cast<float>(width));
    all.features.push_back(static_cast<float>(pooling_factor));
    all.features.push_back(static_cast<float>(rows));
    all.widths.push_back(width);
    all.output_widths.push_back(1.0);
    all.bytes_per_column.push_back(static_cast<std::int64_t>(rows) * 4);
    all.bytes_fixed.push_back(0);
    total_bytes += rows * 4.0 * static_cast<double>(width);
  }
  // Room for twice the tables, and on each device for the largest one.
  const double largest = 2e7 * 4.0 * 128.0;
  const auto memory = static_cast<std::int64_t>(std::max(largest, 2.0 * total_bytes / devices));
  return {std::move(all), kDimColumn, devices, memory};
}

void run(const Options& options) {
  Random random(options.seed);
  const CostNetworks networks = random_networks(options.devices, random);
  const Problem problem = random_problem(options.tables, options.devices, random);

  std::vector<double> times;  // ms
  std::optional<Plan> plan;
  for (int i = 0; i < options.repeat; ++i) {
    Interrupt never;
    const auto start = std::chrono::steady_clock::now();
    plan = search(networks, problem, options.search, never);
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
    times.push_back(time.count());
  }
  std::sort(times.begin(), times.end());
  const std::size_t middle = times.size() / 2;
  const double median =
      times.size() % 2 == 1 ? times[middle] : (times[middle - 1] + times[middle]) / 2.0;

  if (options.json) {
    std::cout << "{\"tables\": " << options.tables << ", \"devices\": " << options.devices
              << ", \"threads\": " << options.search.threads << ", \"repeat\": " << options.repeat
              << ", \"beam_width\": " << options.search.beam_width
              << ", \"candidates\": " << options.search.candidates
              << ", \"max_splits\": " << options.search.max_splits
              << ", \"grid_steps\": " << options.search.grid_steps << ", \"seed\": " << options.seed
              << ", \"median_ms\": " << median << ", \"min_ms\": " << times.front()
              << ", \"cost_ms\": " << (plan ? std::to_string(plan->cost) : "null")
              << ", \"column_splits\": "
              << (plan ? std::to_string(plan->column_splits.size()) : "null") << "}\n";
    return;
  }
  std::cout << options.tables << " tables on " << options.devices << " devices, "
            << options.search.threads << " thread(s): median " << median << " ms, min "
            << times.front() << " ms of " << options.repeat << " plans; ";
  if (plan) {
    std::cout << "cost " << plan->cost << " ms (made-up networks), " << plan->column_splits.size()
              << " column splits\n";
  } else {
    std::cout << "no plan found\n";
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
    return EXIT_SUCCESS;
  } catch (const UsageError& error) {
    std::cerr << "error: " << error.what() << "\n" << kUsage;
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return EXIT_FAILURE;
  }
}
