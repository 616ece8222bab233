#include "baselines.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "shards.hpp"

namespace neuroshard {

namespace {

constexpr int kRandomTries = 64;  // of each kind of order

std::int64_t table_bytes(const Problem& problem, int table) {
  return problem.shard_bytes(table, problem.table_width(table));
}

/// Those that are not pinned.
std::vector<int> free_tables(const Problem& problem) {
  std::vector<int> tables;
  for (int table = 0; table < problem.tables(); ++table) {
    if (problem.pinned(table) == Problem::kAnyDevice) {
      tables.push_back(table);
    }
  }
  return tables;
}

/// What devices hold, pinned tables at first.
class Loads {
 public:
  explicit Loads(const Problem& problem)
      : problem_(problem), placement_(pinned_placement(problem)) {
    for (const std::vector<std::int64_t>& tables : placement_) {
      std::int64_t bytes = 0;
      for (const std::int64_t table : tables) {
        bytes += table_bytes(problem, static_cast<int>(table));
      }
      memory_.push_back(bytes);
    }
  }

  std::int64_t memory(std::size_t device) const { return memory_[device]; }  // bytes

  bool fits(int table, std::size_t device) const {
    return memory_[device] + table_bytes(problem_, table) <=
           problem_.memory_bytes(static_cast<int>(device));
  }

  void put(int table, std::size_t device) {
    memory_[device] += table_bytes(problem_, table);
    placement_[device].push_back(table);
  }

  const Placement& placement() const { return placement_; }

 private:
  const Problem& problem_;
  Placement placement_;
  std::vector<std::int64_t> memory_;
};

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
  Loads loads(problem);
  std::vector<std::size_t> open;
  for (const int table : order) {
    interrupt.check();
    open.clear();
    for (std::size_t device = 0; device < devices; ++device) {
      if (loads.fits(table, device)) {
        open.push_back(device);
      }
    }
    if (open.empty()) {
      return std::nullopt;
    }
    loads.put(table, open[random.below(open.size())]);
  }
  return loads.placement();
}

/// Puts each table, in this order, on the first device in `devices` where it fits.
std::optional<Placement> place_first_fit(const Problem& problem, const std::vector<int>& order,
                                         const std::vector<int>& devices, Interrupt& interrupt) {
  Loads loads(problem);
  for (const int table : order) {
    interrupt.check();
    const auto device = std::find_if(devices.begin(), devices.end(), [&](int candidate) {
      return loads.fits(table, static_cast<std::size_t>(candidate));
    });
    if (device == devices.end()) {
      return std::nullopt;
    }
    loads.put(table, static_cast<std::size_t>(*device));
  }
  return loads.placement();
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
  std::vector<int> order = free_tables(problem);
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

  Loads loads(problem);
  const auto devices = static_cast<std::size_t>(problem.devices());
  std::vector<double> sums(devices, 0.0);  // of keys
  for (std::size_t device = 0; device < devices; ++device) {
    for (const std::int64_t table : loads.placement()[device]) {
      sums[device] += key[static_cast<std::size_t>(table)];
    }
  }
  for (const int table : order) {
    interrupt.check();
    std::size_t chosen = devices;
    for (std::size_t device = 0; device < devices; ++device) {
      if (loads.fits(table, device) &&
          (chosen == devices || sums[device] < sums[chosen] ||
           (sums[device] == sums[chosen] && loads.memory(device) < loads.memory(chosen)))) {
        chosen = device;
      }
    }
    chosen = std::min(chosen, devices - 1);
    sums[chosen] += key[static_cast<std::size_t>(table)];
    loads.put(table, chosen);
  }
  return loads.placement();
}

std::optional<Placement> random_placement(const Problem& problem, std::uint64_t seed,
                                          Interrupt& interrupt) {
  Random random(seed);
  std::vector<int> order = free_tables(problem);
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
