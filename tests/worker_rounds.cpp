// Rounds of work of the engine's threads, for the sanitizers: who takes part, what becomes of an
// exception, and that the threads go home. A round that never ends is ended by an alarm.
//
// usage: worker_rounds

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/interrupt.hpp"
#include "engine/workers.hpp"

namespace {

using namespace neuroshard;  // NOLINT(google-build-using-namespace)

constexpr unsigned kSeconds = 300;

void require(bool holds, const std::string& what) {
  if (!holds) {
    throw std::runtime_error(what);
  }
}

/// What a worker did in a round. Nothing here is atomic: after `run` the calling thread may read
/// it.
struct Share {
  int calls = 0;
  std::size_t pieces = 0;
  std::thread::id thread;
};

/// A round of `pieces` pieces of work, which workers take as long as there are some.
void check_round(Workers& workers, std::size_t most, std::size_t pieces) {
  std::vector<Share> shares(workers.count());
  std::atomic<std::size_t> next = 0;
  workers.run(most, [&](std::size_t worker) {
    Share& share = shares.at(worker);
    ++share.calls;
    share.thread = std::this_thread::get_id();
    while (next++ < pieces) {
      ++share.pieces;
    }
  });
  const std::size_t working = std::min(most, workers.count());
  std::size_t done = 0;
  for (std::size_t worker = 0; worker < shares.size(); ++worker) {
    const Share& share = shares[worker];
    const std::string name = "worker " + std::to_string(worker) + " of " + std::to_string(most);
    require(share.calls == (worker < working ? 1 : 0),
            name + " was called " + std::to_string(share.calls) + " times");
    done += share.pieces;
    for (std::size_t other = 0; other < std::min(worker, working); ++other) {
      require(shares[other].thread != share.thread, name + " shares a thread");
    }
  }
  require(shares.front().thread == std::this_thread::get_id(), "worker 0 is not the caller");
  require(done == pieces, "a round ended before its work");
}

/// Rounds close behind each other, in which more and fewer workers take part.
void check_rounds(int threads) {
  constexpr int kRepeats = 40;
  Interrupt interrupt;
  Workers workers(threads, interrupt);
  const std::size_t count = workers.count();
  require(std::cmp_equal(count, threads), "count() is not the number of threads");
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // until the helpers sleep
    for (std::size_t most = 1; most <= count + 1; ++most) {
      check_round(workers, most, 3 * count);
    }
    for (std::size_t most = count; most > 0; --most) {
      check_round(workers, most, most % 2);
    }
  }
  interrupt.check();  // nothing failed, so nothing was stopped
}

/// One worker throws, the others work until they are interrupted.
void check_exception(int threads, std::size_t thrower) {
  Interrupt interrupt;
  Workers workers(threads, interrupt);
  std::vector<int> interrupted(workers.count());
  std::atomic<std::size_t> waiting = 0;
  std::string caught = "nothing";
  try {
    workers.run(workers.count(), [&](std::size_t worker) {
      if (worker == thrower) {
        while (waiting + 1 < workers.count()) {  // else they might not have begun
          std::this_thread::yield();
        }
        throw std::runtime_error("from worker " + std::to_string(worker));
      }
      ++waiting;
      try {
        while (true) {
          interrupt.check();
          std::this_thread::yield();
        }
      } catch (const Interrupted&) {
        interrupted[worker] = 1;
        throw;
      }
    });
  } catch (const std::exception& error) {
    caught = error.what();
  }
  require(caught == "from worker " + std::to_string(thrower), "run threw: " + caught);
  require(static_cast<std::size_t>(std::ranges::count(interrupted, 1)) == workers.count() - 1,
          "a worker was not interrupted");
  try {
    check_round(workers, workers.count(), 1);  // nothing is left of that round
  } catch (const Interrupted&) {               // NOLINT(bugprone-empty-catch)
    // The work is still stopped, which a caller sees who waits long for the helpers.
  }
}

/// The calling thread asks whether to stop also while it only waits for its helpers.
void check_stop_of_waiting_caller(int threads) {
  std::atomic<bool> asked = false;
  Interrupt interrupt([&] {
    asked = true;
    return true;
  });
  Workers workers(threads, interrupt);
  bool stopped = false;
  try {
    workers.run(workers.count(), [&](std::size_t worker) {
      if (worker > 0) {
        while (true) {
          interrupt.check();
          std::this_thread::yield();
        }
      }
    });
  } catch (const Interrupted&) {
    stopped = true;
  }
  require(stopped == (threads > 1) && stopped == asked, "a caller who waits was not asked");
}

/// All workers throw at once: any of the exceptions comes out, only one.
void check_exceptions_at_once(int threads) {
  Interrupt interrupt;
  Workers workers(threads, interrupt);
  int caught = 0;
  try {
    workers.run(workers.count(), [](std::size_t) { throw std::runtime_error("at once"); });
  } catch (const std::runtime_error&) {
    ++caught;
  }
  require(caught == 1, "no exception of a worker came out");
}

/// The end of workers that have and have not worked, dismissed or not, at once or later.
void check_ends(int threads) {
  Interrupt interrupt;
  {
    const Workers idle(threads, interrupt);
  }
  {
    Workers dismissed(threads, interrupt);
    dismissed.dismiss();
  }
  {
    Workers worked(threads, interrupt);
    check_round(worked, worked.count(), 1);
  }
  {
    Workers worked(threads, interrupt);
    check_round(worked, worked.count(), 1);
    worked.dismiss();
  }
  Workers worked(threads, interrupt);
  check_round(worked, worked.count(), 1);
  worked.dismiss();
  std::this_thread::yield();
  worked.dismiss();  // has no effect
}

void check_all(int threads) {
  constexpr int kRepeats = 20;
  check_rounds(threads);
  check_stop_of_waiting_caller(threads);
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    for (const int thrower : {0, threads / 2, threads - 1}) {
      check_exception(threads, static_cast<std::size_t>(thrower));
    }
    check_exceptions_at_once(threads);
    check_ends(threads);
  }
}

}  // namespace

int main() {
  alarm(kSeconds);
  try {
    const auto processors = static_cast<int>(std::max(std::thread::hardware_concurrency(), 1U));
    for (const int threads : {1, 2, std::min(processors, 8), processors + 3}) {
      check_all(threads);
      std::cout << "rounds of " << threads << " workers on " << processors << " processors\n";
    }
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return EXIT_FAILURE;
  }
}
