#include "baselines.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace neuroshard {

namespace {

constexpr int kRandomTries = 64;  // of each kind of order

std::int64_t table_bytes(const Problem& problem, int table) {
  return problem.shard_bytes(table, problem.table_width(table));
}

std::vector<int> all_tables(const Problem& problem) {
  std::vector<int> tables(static_cast<std::size_t>(problem.tables()));
  std::iota(tables.begin(), tables.end(), 0);
  return tables;
}

/// Random numbers that are the same with every standard library, which std's distributions are not.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  /// A number in 0 … bound - 1. The bias of the remainder is below bound / 2^64.
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(engine_() % bound); }

  void shuffle(std::vector<int>& values) {
    for (std::size_t i = values.size(); i > 1; --i) {
      std::swap(values[i - 1], values[below(i)]);
    }
  }

 private:
  std::mt19937_64 engine_;
};

/// Puts each table, in this order, on a random device among those where it fits.
std::optional<Placement> place_randomly(const Problem& problem, const std::vector<int>& order,
                                        Random& random, Interrupt& interrupt) {
  const auto devices = static_cast<std::size_t>(problem.devices());
  Placement placement(devices);
  std::vector<std::int64_t> memory(devices, 0);
  std::vector<std::size_t> open;
  for (const int table : order) {
    interrupt.check();
    const std::int64_t bytes = table_bytes(problem, table);
    open.clear();
    for (std::size_t device = 0; device < devices; ++device) {
      if (memory[device] + bytes <= problem.memory_bytes()) {
        open.push_back(device);
      }
    }
    if (open.empty()) {
      return std::nullopt;
    }
    const std::size_t device = open[random.below(open.size())];
    memory[device] += bytes;
    placement[device].push_back(table);
  }
  return placement;
}

/// Puts each table, in this order, on the first device in `devices` where it fits.
std::optional<Placement> place_first_fit(const Problem& problem, const std::vector<int>& order,
                                         const std::vector<int>& devices, Interrupt& interrupt) {
  Placement placement(devices.size());
  std::vector<std::int64_t> memory(devices.size(), 0);
  for (const int table : order) {
    interrupt.check();
    const std::int64_t bytes = table_bytes(problem, table);
    const auto device = std::find_if(devices.begin(), devices.end(), [&](int candidate) {
      return memory[static_cast<std::size_t>(candidate)] + bytes <= problem.memory_bytes();
    });
    if (device == devices.end()) {
      return std::nullopt;
    }
    memory[static_cast<std::size_t>(*device)] += bytes;
    placement[static_cast<std::size_t>(*device)].push_back(table);
  }
  return placement;
}

}  // namespace

Placement greedy_baseline(const Problem& problem, std::span<const double> key,
                          Interrupt& interrupt) {
  if (key.size() != static_cast<std::size_t>(problem.tables())) {
    throw std::invalid_argument("key must have one entry for each of the " +
                                std::to_string(problem.tables()) + " tables, it has " +
                                std::to_string(key.size()));
  }
  if (!std::all_of(key.begin(), key.end(), [](double value) { return std::isfinite(value); })) {
    throw std::invalid_argument("key must hold finite numbers");
  }
  std::vector<int> order = all_tables(problem);
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    const double key_a = key[static_cast<std::size_t>(a)];
    const double key_b = key[static_cast<std::size_t>(b)];
    if (key_a != key_b) {
      return key_a > key_b;
    }
    const std::int64_t bytes_a = table_bytes(problem, a);
    const std::int64_t bytes_b = table_bytes(problem, b);
    return bytes_a != bytes_b ? bytes_a > bytes_b : a > b;
  });

  struct Device {
    double sum = 0.0;
    std::int64_t memory = 0;  // bytes
  };
  std::vector<Device> devices(static_cast<std::size_t>(problem.devices()));
  Placement placement(devices.size());
  for (const int table : order) {
    interrupt.check();
    const std::int64_t bytes = table_bytes(problem, table);
    std::size_t chosen = devices.size();
    for (std::size_t device = 0; device < devices.size(); ++device) {
      const Device& candidate = devices[device];
      if (candidate.memory + bytes > problem.memory_bytes()) {
        continue;
      }
      if (chosen == devices.size() || candidate.sum < devices[chosen].sum ||
          (candidate.sum == devices[chosen].sum && candidate.memory < devices[chosen].memory)) {
        chosen = device;
      }
    }
    if (chosen == devices.size()) {
      chosen = devices.size() - 1;
    }
    devices[chosen].sum += key[static_cast<std::size_t>(table)];
    devices[chosen].memory += bytes;
    placement[chosen].push_back(table);
  }
  return placement;
}

std::optional<Placement> random_placement(const Problem& problem, std::uint64_t seed,
                                          Interrupt& interrupt) {
  Random random(seed);
  std::vector<int> order = all_tables(problem);
  for (int attempt = 0; attempt < kRandomTries; ++attempt) {
    random.shuffle(order);
    if (auto placement = place_randomly(problem, order, random, interrupt)) {
      return placement;
    }
  }
  // Memory is tight: the large tables first, while there is room for them.
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return table_bytes(problem, a) > table_bytes(problem, b); });
  for (int attempt = 0; attempt < kRandomTries; ++attempt) {
    if (auto placement = place_randomly(problem, order, random, interrupt)) {
      return placement;
    }
  }
  std::vector<int> devices(static_cast<std::size_t>(problem.devices()));
  std::iota(devices.begin(), devices.end(), 0);
  random.shuffle(devices);
  return place_first_fit(problem, order, devices, interrupt);
}

}  // namespace neuroshard
