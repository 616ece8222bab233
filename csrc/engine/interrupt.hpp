#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

namespace neuroshard {

/// Thrown where work is stopped before its end.
class Interrupted : public std::exception {
 public:
  const char* what() const noexcept override { return "the work was interrupted"; }
};

/// Lets whoever called the engine stop it: by being asked, by a deadline, or from another thread.
///
/// Long work calls `check` often, from any thread: it is cheap. The question whether to stop may be
/// dear, so it is put to the caller only now and then, and only on the thread that made this
/// object, because Python answers it on its main thread alone.
class Interrupt {
 public:
  using Clock = std::chrono::steady_clock;

  /// `should_stop` may be empty: then nothing stops the work but `stop` and a deadline.
  explicit Interrupt(std::function<bool()> should_stop = {},
                     std::optional<Clock::time_point> deadline = std::nullopt)
      : should_stop_(std::move(should_stop)), deadline_(deadline) {}

  /// Makes every later `check` throw.
  void stop() { stopped_ = true; }

  /// Throws Interrupted if the work shall end.
  void check() {
    if (should_stop_ && std::this_thread::get_id() == owner_) {
      ask_if_due();
    }
    if (deadline_ && Clock::now() >= *deadline_) {
      past_deadline_ = true;
      stop();
    }
    if (stopped_) {
      throw Interrupted();
    }
  }

  /// Whether it is the deadline that has stopped the work.
  bool past_deadline() const { return past_deadline_; }

 private:
  static constexpr std::chrono::milliseconds kBetweenQuestions{50};  // too short for people to feel

  void ask_if_due() {
    const Clock::time_point now = Clock::now();
    if (now - asked_ >= kBetweenQuestions) {
      asked_ = now;
      if (should_stop_()) {
        stop();
      }
    }
  }

  const std::function<bool()> should_stop_;
  const std::optional<Clock::time_point> deadline_;
  const std::thread::id owner_ = std::this_thread::get_id();
  Clock::time_point asked_ = Clock::now();  // touched by the owner alone
  std::atomic<bool> stopped_ = false;
  std::atomic<bool> past_deadline_ = false;
};

}  // namespace neuroshard
