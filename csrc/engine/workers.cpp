#include "workers.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <system_error>
#include <utility>

namespace neuroshard {

namespace {

/// Tells the processor that the thread only waits.
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Waits until `value` is no longer `old`; asks `spins` times before it goes to sleep.
template <typename T>
void wait_while(const std::atomic<T>& value, T old, int spins) {
  for (int i = 0; i < spins && value == old; ++i) {
    pause();
  }
  value.wait(old);
}

}  // namespace

Workers::Workers(int threads, Interrupt& interrupt)
    : count_(static_cast<std::size_t>(threads)),
      // Pieces of work follow each other closely, and to wake a thread takes as long as the time in
      // between. But where threads share a processor, one that spins keeps it from others.
      spins_(count_ <= std::thread::hardware_concurrency() ? kSpins : 0),
      interrupt_(interrupt) {}

Workers::~Workers() {
  dismiss();
  for (std::thread& helper : helpers_) {
    helper.join();
  }
}

void Workers::dismiss() {
  if (std::exchange(is_dismissed_, true)) {
    return;
  }
  work_ = nullptr;
  ++round_;
  round_.notify_all();
}

void Workers::run(std::size_t most, const std::function<void(std::size_t worker)>& work) {
  most = std::min(most, count_);
  if (most > 1) {
    start(most - 1);
  }
  work_ = &work;
  most_ = most;
  failure_ = nullptr;
  helping_ = helpers_.size();
  ++round_;
  round_.notify_all();
  take_part(0);
  for (int i = 0; i < spins_ && helping_ > 0; ++i) {
    pause();
  }
  wait_for_helpers();
  if (failure_) {
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
}

void Workers::wait_for_helpers() {
  constexpr std::chrono::milliseconds kBetweenQuestions{50};
  std::unique_lock lock(done_mutex_);
  while (!done_.wait_for(lock, kBetweenQuestions, [&] { return helping_ == 0; })) {
    try {
      interrupt_.check();
    } catch (...) {
      fail(std::current_exception());
    }
  }
}

void Workers::start(std::size_t helpers) {
  helpers_.reserve(count_ - 1);
  try {
    while (helpers_.size() < helpers) {
      helpers_.emplace_back(&Workers::help, this, helpers_.size() + 1, round_.load());
    }
  } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch)
    // The system gives no more threads: those that run share the work.
  }
}

void Workers::help(std::size_t worker, unsigned round) {
  // The first exception of a thread needs memory, without which the process ends: take it now.
  static_cast<void>(std::uncaught_exceptions());
  while (true) {
    wait_while(round_, round, spins_);
    ++round;
    if (work_ == nullptr) {
      return;
    }
    if (worker < most_) {
      take_part(worker);
    }
    const std::scoped_lock lock(done_mutex_);
    if (--helping_ == 0) {
      done_.notify_one();
    }
  }
}

void Workers::take_part(std::size_t worker) {
  try {
    (*work_)(worker);
  } catch (...) {
    fail(std::current_exception());
  }
}

void Workers::fail(std::exception_ptr failure) {
  const std::scoped_lock lock(failure_mutex_);
  if (!failure_) {  // later ones are Interrupted, the echo of the first
    failure_ = std::move(failure);
  }
  interrupt_.stop();
}

}  // namespace neuroshard
