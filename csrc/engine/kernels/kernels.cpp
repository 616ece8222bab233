#include "kernels.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <stdexcept>
#include <string>

namespace neuroshard {

#if defined(__x86_64__)
extern const Kernels kernels_avx512;
extern const Kernels kernels_avx2;
#endif
extern const Kernels kernels_baseline;

namespace {

struct Entry {
  std::string_view name;
  const Kernels* kernels;
  bool (*supported)();
};

// Widest first.
constexpr std::array kEntries = {
#if defined(__x86_64__)
    Entry{"avx512", &kernels_avx512,
          [] {
            return __builtin_cpu_supports("avx512f") != 0 &&
                   __builtin_cpu_supports("avx512dq") != 0 &&
                   __builtin_cpu_supports("avx512vl") != 0 &&
                   __builtin_cpu_supports("avx512bw") != 0;
          }},
    Entry{"avx2", &kernels_avx2, [] { return __builtin_cpu_supports("avx2") != 0; }},
#endif
#if defined(__aarch64__)
    Entry{"neon", &kernels_baseline, [] { return true; }},
#else
    Entry{"portable", &kernels_baseline, [] { return true; }},
#endif
};

const Entry& widest() {
  return *std::find_if(kEntries.begin(), kEntries.end(),
                       [](const Entry& entry) { return entry.supported(); });
}

std::atomic<const Entry*>& in_use() {
  static std::atomic<const Entry*> entry = &widest();
  return entry;
}

}  // namespace

const Kernels& kernels() { return *in_use().load(std::memory_order_relaxed)->kernels; }

std::string_view isa() { return in_use().load(std::memory_order_relaxed)->name; }

std::vector<std::string_view> supported_isas() {
  std::vector<std::string_view> names;
  for (const Entry& entry : kEntries) {
    if (entry.supported()) {
      names.push_back(entry.name);
    }
  }
  return names;
}

void use_isa(std::string_view name) {
  for (const Entry& entry : kEntries) {
    if (entry.name == name && entry.supported()) {
      in_use().store(&entry, std::memory_order_relaxed);
      return;
    }
  }
  std::string known;
  for (const std::string_view supported : supported_isas()) {
    known += known.empty() ? "" : ", ";
    known += supported;
  }
  throw std::invalid_argument("isa: '" + std::string(name) +
                              "' cannot run here, this processor has: " + known);
}

}  // namespace neuroshard
