#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <thread>
#include <utility>

namespace neuroshard {

/// Thrown where a search is stopped before its end.
class Interrupted : public std::exception {
 public:
  const char* what() const noexcept override { return "the search was interrupted"; }
};

/// Lets whoever called the engine stop it.
///
/// Long work calls `check` now and then, from any thread. The question is only put to the caller on
/// the thread that made this object, because Python answers it on its main thread alone.
class Interrupt {
 public:
  /// `should_stop` may be empty: then nothing stops the work but `stop`.
  explicit Interrupt(std::function<bool()> should_stop = {})
      : should_stop_(std::move(should_stop)) {}

  /// Makes every later `check` throw.
  void stop() { stopped_ = true; }

  /// Throws Interrupted if the work shall end.
  void check() {
    if (should_stop_ && std::this_thread::get_id() == owner_ && should_stop_()) {
      stop();
    }
    if (stopped_) {
      throw Interrupted();
    }
  }

 private:
  std::function<bool()> should_stop_;
  std::thread::id owner_ = std::this_thread::get_id();
  std::atomic<bool> stopped_ = false;
};

}  // namespace neuroshard
