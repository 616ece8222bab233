#pragma once

#include <cstddef>
#include <functional>

#include "interrupt.hpp"

namespace neuroshard {

/// Calls `work(item, worker)` once for each item in 0 … items - 1, on at most `threads` threads, of
/// which the calling one is worker 0; `worker` is below `threads`. Which worker gets an item is not
/// determined, so results go into a place of the item's own. The first exception stops the rest and
/// is thrown here.
void parallel_for(std::size_t items, int threads, Interrupt& interrupt,
                  const std::function<void(std::size_t item, std::size_t worker)>& work);

}  // namespace neuroshard
