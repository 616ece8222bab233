#include "throughput.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/aligned.hpp"
#include "engine/kernels/kernels.hpp"

namespace neuroshard::bench {

#if defined(__x86_64__)
extern const ThroughputLoops loops_avx512;
extern const ThroughputLoops loops_avx2;
#endif
extern const ThroughputLoops loops_baseline;

namespace {

const ThroughputLoops& loops() {
#if defined(__x86_64__)
  if (isa() == "avx512") {
    return loops_avx512;
  }
  if (isa() == "avx2") {
    return loops_avx2;
  }
#endif
  return loops_baseline;
}

/// Rounds a second of `run(rounds)`.
template <typename Run>
double best_rate(const Run& run) {
  using Clock = std::chrono::steady_clock;
  constexpr std::size_t kRuns = 200;
  // Short beside what the system gives a thread at a time, so that many are not disturbed.
  constexpr std::chrono::duration<double> kRunTime{2e-4};
  const auto time = [&](std::size_t rounds) -> std::chrono::duration<double> {
    const Clock::time_point start = Clock::now();
    const volatile float result = run(rounds);  // has to be computed
    static_cast<void>(result);
    return Clock::now() - start;
  };
  std::size_t rounds = 1;
  while (time(rounds) < kRunTime) {
    rounds *= 2;
  }
  std::chrono::duration<double> best = time(rounds);
  for (std::size_t i = 0; i < kRuns; ++i) {
    best = std::min(best, time(rounds));
  }
  return static_cast<double>(rounds) / best.count();
}

}  // namespace

Throughput measure_throughput() {
  constexpr std::size_t kDevices = 1024;  // three arrays of 4 KiB
  std::array<float, 32> input{};
  input.fill(0.5F);
  AlignedVector<float> cost(kDevices);
  AlignedVector<float> memory(kDevices);
  AlignedVector<float> output_dims(kDevices);
  for (std::size_t i = 0; i < kDevices; ++i) {
    const auto number = static_cast<std::uint32_t>(i) * 2654435761U;  // scattered
    cost[i] = static_cast<float>(number >> 8U);
    memory[i] = (number & 1U) != 0 ? 0.0F : 1.0F;
    output_dims[i] = (number & 2U) != 0 ? 0.0F : 1.0F;
  }
  const ThroughputLoops& of_isa = loops();
  return {.multiply_adds = best_rate([&](std::size_t rounds) {
                             return of_isa.multiply_add(rounds, input.data());
                           }) *
                           static_cast<double>(of_isa.multiply_adds),
          .comparisons = best_rate([&](std::size_t rounds) {
                           return of_isa.compare(rounds, cost.data(), memory.data(),
                                                 output_dims.data(), kDevices);
                         }) *
                         static_cast<double>(kDevices)};
}

}  // namespace neuroshard::bench
