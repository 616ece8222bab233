#include "parallel.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace neuroshard {

void parallel_for(std::size_t items, int threads, Interrupt& interrupt,
                  const std::function<void(std::size_t item, std::size_t worker)>& work) {
  std::atomic<std::size_t> next = 0;
  std::exception_ptr failure;
  std::mutex failure_mutex;

  const auto run = [&](std::size_t worker) {
    try {
      for (std::size_t item = next++; item < items; item = next++) {
        interrupt.check();
        work(item, worker);
      }
    } catch (...) {
      const std::scoped_lock lock(failure_mutex);
      if (!failure) {  // later ones are Interrupted, the echo of the first
        failure = std::current_exception();
      }
      interrupt.stop();
    }
  };

  {
    std::vector<std::jthread> helpers;
    const std::size_t workers = std::min(items, static_cast<std::size_t>(threads));
    helpers.reserve(workers);  // a failure here has no running helper to wait for
    try {
      for (std::size_t worker = 1; worker < workers; ++worker) {
        helpers.emplace_back(run, worker);
      }
    } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch)
      // The system gives no more threads: those that run share the work.
    }
    run(0);
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

}  // namespace neuroshard
