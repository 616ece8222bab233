#include "auto_search.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "beam_search.hpp"
#include "local_search.hpp"
#include "memory_search.hpp"
#include "plan_cost.hpp"
#include "plan_objective.hpp"
#include "shard_catalog.hpp"
#include "workers.hpp"

namespace neuroshard {

namespace {

using Clock = Interrupt::Clock;

constexpr int kAttempts = 512;        // at a plan that keeps the memory
constexpr int kAttemptsWhenLate = 2;  // where the deadline has passed before there was any plan

// Few tables are planned at once whatever is done: so many evaluations, divided by their number,
// but no more than this, are made in any case.
constexpr std::int64_t kEvaluationsOfTables = 65536;
constexpr std::int64_t kMostAtLeast = 4096;
constexpr std::int64_t kOfFewTables = 12288;
constexpr std::int64_t kMostOfMeans = 512;  // each of which takes far longer

// With few tables, other plans that keep the memory are improved as well, after the first one,
// which gets so much of the time.
constexpr int kFewTables = 12;
constexpr int kRestarts = 8;
constexpr int kAttemptsToRestart = 8;
constexpr double kFirst = 0.2;

// Each annealing takes so many times as long as the one before, from the best plan of which it
// begins.
constexpr int kAnnealings = 3;
constexpr double kLonger = 3.0;

/// Of one problem.
class AutoSearch {
 public:
  AutoSearch(const CostNetworks& networks, const Problem& problem, const AutoOptions& options,
             Interrupt& interrupt)
      : networks_(networks),
        problem_(problem),
        options_(options),
        interrupt_(interrupt),
        workers_(options.search.threads, interrupt),
        catalog_(networks, problem, workers_, never_),
        objective_(networks, problem.devices()),
        restarts_(problem.tables() <= kFewTables ? kRestarts : 0) {}

  AutoAnswer run() {
    answer_.is_mean = objective_.is_mean();
    answer_.impossible = why_impossible(problem_, options_.search.max_splits);
    if (!answer_.impossible.empty()) {
      return std::move(answer_);
    }
    try {
      find();
      improve();
    } catch (const Interrupted&) {
      keep_improved();
      answer_.interrupted = !interrupt_.past_deadline();
      if (!answer_.plan && !answer_.interrupted) {
        find_by_memory(never_, kAttemptsWhenLate);
      }
    }
    return std::move(answer_);
  }

 private:
  /// A first plan.
  void find() {
    BeamSearch beam_search(networks_, problem_, options_.search, catalog_, workers_, interrupt_,
                           {});
    std::optional<Interrupted> interrupted;
    try {
      beam_search.run();
    } catch (const Interrupted& stop) {
      interrupted = stop;
    }
    workers_.dismiss();
    placements_ = beam_search.placements();
    if (std::optional<SplitsAndPlacement> best = beam_search.best(never_)) {
      take(*std::move(best));
      answer_.published = answer_.objective;
    }
    if (interrupted) {
      throw *interrupted;
    }
    if (!answer_.plan) {
      find_by_memory(interrupt_, kAttempts);
    }
  }

  /// A plan that keeps the memory, whatever it costs.
  void find_by_memory(Interrupt& interrupt, int attempts) {
    MemorySearch memory_search(problem_, catalog_, options_.search.max_splits, options_.seed,
                               interrupt);
    if (const std::optional<SplitPlan> plan = memory_search.find(attempts)) {
      take(from_split_plan(problem_, catalog_, *plan));
    }
  }

  /// Makes it cheaper while there is time.
  void improve() {
    if (!answer_.plan || problem_.devices() == 1) {
      return;
    }
    begun_ = Clock::now();
    budget_ = static_cast<double>(options_.evaluations.value_or(default_budget()));
    anneal(to_split_plan(problem_, catalog_, answer_.plan->column_splits, answer_.plan->placement),
           options_.seed, 0.0, restarts_ == 0 ? 1.0 : kFirst);
    // Few shards make large steps, over which no annealing from one plan leads.
    for (int restart = 1; restart <= restarts_; ++restart) {
      const std::uint64_t seed = options_.seed + static_cast<std::uint64_t>(restart);
      const double begin = kFirst + (1.0 - kFirst) * (restart - 1) / restarts_;
      const double end = kFirst + (1.0 - kFirst) * restart / restarts_;
      MemorySearch memory_search(problem_, catalog_, options_.search.max_splits, seed, interrupt_);
      if (const std::optional<SplitPlan> plan = memory_search.find_at_random(kAttemptsToRestart)) {
        anneal(*plan, seed, begin, end);
      }
    }
  }

  /// Goes on from a plan from one part of the time to another.
  void anneal(const SplitPlan& plan, std::uint64_t seed, double begin, double end) {
    local_search_.emplace(networks_, problem_, catalog_, options_.search.max_splits, seed,
                          interrupt_);
    local_search_->start(plan);
    double length = (end - begin) * (kLonger - 1.0) / (std::pow(kLonger, kAnnealings) - 1.0);
    for (int annealing = 1; annealing <= kAnnealings; ++annealing, length *= kLonger) {
      const double stop = annealing == kAnnealings ? end : begin + length;
      local_search_->run([&](std::int64_t done) {
        tell(local_search_->best_cost());
        return (part_over(done) - begin) / (stop - begin);
      });
      begin = stop;
    }
    keep_improved();
  }

  /// How much of the time is over.
  double part_over(std::int64_t evaluations_at_hand) const {
    if (options_.deadline) {
      return (Clock::now() - begun_) / std::chrono::duration<double>(*options_.deadline - begun_);
    }
    return static_cast<double>(answer_.evaluations + evaluations_at_hand) / budget_;
  }

  /// Evaluations that take about as long as the published search has taken.
  std::int64_t default_budget() const {
    // In nanoseconds, as measured: a placement takes 200 to 300, of which it gets somewhat more, an
    // evaluation 1300 and 130 for each device.
    constexpr double kPlacement = 400.0;
    constexpr double kEvaluation = 1300.0;
    constexpr double kDevice = 130.0;
    const double nanoseconds =
        (kEvaluation + kDevice * problem_.devices()) * objective_.calls_per_plan();
    const double evaluations = kPlacement * static_cast<double>(placements_) / nanoseconds;
    std::int64_t least =
        std::clamp<std::int64_t>(kEvaluationsOfTables / problem_.tables(), 256, kMostAtLeast);
    if (objective_.is_mean()) {
      least = kMostOfMeans;
    } else if (restarts_ > 0) {
      least = kOfFewTables;
    }
    return std::max(least, static_cast<std::int64_t>(evaluations));
  }

  void keep_improved() {
    if (!local_search_) {
      return;
    }
    answer_.evaluations += local_search_->evaluations();
    if (local_search_->best_cost() < answer_.objective) {
      take(from_split_plan(problem_, catalog_, local_search_->best()));
    }
    local_search_.reset();
  }

  /// Makes it the answer, unless it is dearer than the one that there is.
  void take(SplitsAndPlacement found) {
    Plan plan = evaluate_plan(networks_, problem_, catalog_, std::move(found.column_splits),
                              std::move(found.placement), never_);
    const double objective = objective_.of(plan);
    if (!answer_.plan || objective < answer_.objective) {
      answer_.plan = std::move(plan);
      answer_.objective = objective;
      tell(objective);
    }
  }

  void tell(double cost) {
    if (cost < told_ && options_.improved) {
      told_ = cost;
      options_.improved(cost);
    }
  }

  const CostNetworks& networks_;
  const Problem& problem_;
  const AutoOptions& options_;
  Interrupt& interrupt_;
  Interrupt never_;
  Workers workers_;
  ShardCatalog catalog_;
  PlanObjective objective_;
  std::optional<LocalSearch> local_search_;
  std::int64_t placements_ = 0;
  const int restarts_;
  Clock::time_point begun_;  // to improve the first plan
  double budget_ = 0.0;      // of evaluations
  double told_ = std::numeric_limits<double>::infinity();
  AutoAnswer answer_;
};

}  // namespace

AutoAnswer auto_search(const CostNetworks& networks, const Problem& problem,
                       const AutoOptions& options, Interrupt& interrupt) {
  check_options(options.search);
  check_memory(networks, problem, options.search);
  return AutoSearch(networks, problem, options, interrupt).run();
}

}  // namespace neuroshard
