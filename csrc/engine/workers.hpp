#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "interrupt.hpp"

namespace neuroshard {

/// Threads that do one piece of work after the other together, the calling one and helpers, which
/// wait for more in between.
class Workers {
 public:
  /// Starts no helper before there is work for it. Keeps a reference to `interrupt`.
  Workers(int threads, Interrupt& interrupt);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers(Workers&&) = delete;
  Workers& operator=(const Workers&) = delete;
  Workers& operator=(Workers&&) = delete;

  /// The most that can work, at least 1.
  std::size_t count() const { return count_; }

  /// Calls `work(worker)` for workers 0 … `most` - 1, each on a thread of its own, worker 0 on the
  /// calling one, and waits for all. There may be fewer, if the system gives no more threads: work
  /// is something that each takes its share of, whoever comes first. The first exception interrupts
  /// the others and is thrown here.
  void run(std::size_t most, const std::function<void(std::size_t worker)>& work);

  /// Sends the helpers home, without waiting for them. `run` must not be called after this: it
  /// would wait for them forever.
  void dismiss();

 private:
  void help(std::size_t worker, unsigned round);
  void take_part(std::size_t worker);
  void wait_for_helpers();
  void fail(std::exception_ptr failure);
  void start(std::size_t helpers);

  static constexpr int kSpins = 4096;  // in the order of 0.1 ms on x86-64, less on Arm

  const std::size_t count_;
  const int spins_;
  Interrupt& interrupt_;
  std::vector<std::thread> helpers_;
  bool is_dismissed_ = false;
  std::atomic<unsigned> round_ = 0;  // of work, changes where there is more
  std::atomic<std::size_t> helping_ = 0;

  // Of this round. The calling thread writes these before it changes `round_`; helpers read them
  // after they have seen that change and before they lower `helping_`, and the next round waits for
  // `helping_` to be 0. All helpers count, also those with nothing to do.
  const std::function<void(std::size_t worker)>* work_ = nullptr;  // nothing: helpers go home
  std::size_t most_ = 0;

  std::mutex done_mutex_;
  std::condition_variable done_;  // helping_ has become 0

  std::mutex failure_mutex_;
  std::exception_ptr failure_;
};

}  // namespace neuroshard
