#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace neuroshard {

/// Gives memory that starts on a cache line, so that no vector register straddles two.
template <typename T>
struct CacheLineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kCacheLine{64};

  CacheLineAllocator() = default;
  template <typename U>
  explicit CacheLineAllocator(const CacheLineAllocator<U>& /*other*/) {}

  T* allocate(std::size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), kCacheLine));
  }
  void deallocate(T* memory, std::size_t /*count*/) { ::operator delete(memory, kCacheLine); }

  bool operator==(const CacheLineAllocator& /*other*/) const { return true; }
};

template <typename T>
using AlignedVector = std::vector<T, CacheLineAllocator<T>>;

}  // namespace neuroshard
