#include "workers.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

namespace neuroshard {

namespace {

/// Waits until `value` is no longer `old`. Pieces of work follow each other closely, and it takes
/// longer to wake a thread than to ask again for a while.
template <typename T>
void wait_while(const std::atomic<T>& value, T old) {
  constexpr int kAsk = 200;
  for (int i = 0; i < kAsk && value == old; ++i) {
    std::this_thread::yield();
  }
  value.wait(old);
}

}  // namespace

Workers::Workers(int threads, Interrupt& interrupt)
    : count_(static_cast<std::size_t>(threads)), interrupt_(interrupt) {}

Workers::~Workers() {
  work_ = nullptr;
  ++round_;
  round_.notify_all();
  for (std::thread& helper : helpers_) {
    helper.join();
  }
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
  this->work(0);
  for (std::size_t helping = helping_; helping > 0; helping = helping_) {
    wait_while(helping_, helping);
  }
  if (failure_) {
    std::rethrow_exception(std::exchange(failure_, nullptr));
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
  while (true) {
    wait_while(round_, round);
    ++round;
    if (work_ == nullptr) {
      return;
    }
    if (worker < most_) {
      this->work(worker);
    }
    if (--helping_ == 0) {
      helping_.notify_one();
    }
  }
}

void Workers::work(std::size_t worker) {
  try {
    (*work_)(worker);
  } catch (...) {
    const std::scoped_lock lock(failure_mutex_);
    if (!failure_) {  // later ones are Interrupted, the echo of the first
      failure_ = std::current_exception();
    }
    interrupt_.stop();
  }
}

}  // namespace neuroshard
