#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/auto_search.hpp"
#include "engine/cost_networks.hpp"
#include "engine/exhaustive_search.hpp"
#include "engine/interrupt.hpp"
#include "engine/lower_bound.hpp"
#include "engine/plain_annealing.hpp"
#include "engine/plan.hpp"
#include "engine/plan_cost.hpp"
#include "engine/plan_objective.hpp"
#include "engine/problem.hpp"
#include "engine/replan.hpp"
#include "interruptible.hpp"
#include "register.hpp"

namespace py = pybind11;

namespace neuroshard::binding {

namespace {

/// Stops searches that are given it, from any thread.
class CancelToken {
 public:
  void cancel() { cancelled_ = true; }
  bool is_cancelled() const { return cancelled_; }

 private:
  std::atomic<bool> cancelled_ = false;
};

/// An answer, and the Python exception that ended the search, of a signal or a callback, or None.
struct Answered {
  AutoAnswer answer;
  py::object error = py::none();
};

/// What the search asks its caller about, and tells it, from time to time.
class Caller {
 public:
  Caller(std::shared_ptr<CancelToken> cancel, py::object progress)
      : cancel_(std::move(cancel)), progress_(std::move(progress)) {}

  void improve(double cost) { cost_ = cost; }

  /// Whether to stop; called without the GIL.
  bool should_stop() {
    if (cancel_ && cancel_->is_cancelled()) {
      return true;
    }
    const py::gil_scoped_acquire acquire;
    try {
      if (PyErr_CheckSignals() != 0) {
        throw py::error_already_set();
      }
      tell();
    } catch (py::error_already_set& error) {
      error_ = error.value();
      return true;
    }
    return false;
  }

  /// Tells of the last plan that it has not told of yet; with the GIL.
  void tell() {
    if (!progress_.is_none() && cost_ < told_) {
      told_ = cost_;
      progress_(cost_);
    }
  }

  py::object error() const { return error_; }

 private:
  std::shared_ptr<CancelToken> cancel_;
  py::object progress_;
  py::object error_ = py::none();
  double cost_ = std::numeric_limits<double>::infinity();
  double told_ = std::numeric_limits<double>::infinity();
};

Answered run(const CostNetworks& networks, const Problem& problem, AutoOptions options,
             std::optional<double> seconds, std::shared_ptr<CancelToken> cancel,
             py::object progress) {
  constexpr double kMostSeconds = 1e9;
  if (seconds && !(*seconds >= 0.0 && *seconds <= kMostSeconds)) {
    throw std::invalid_argument("seconds must lie between 0 and 1e9");
  }
  if (options.evaluations && *options.evaluations < 0) {
    throw std::invalid_argument("evaluations must be at least 0");
  }
  if (seconds) {
    options.deadline =
        Interrupt::Clock::now() + std::chrono::duration_cast<Interrupt::Clock::duration>(
                                      std::chrono::duration<double>(*seconds));
  }
  Caller caller(std::move(cancel), std::move(progress));
  options.improved = [&](double cost) { caller.improve(cost); };
  Interrupt interrupt([&] { return caller.should_stop(); }, options.deadline);
  Answered answered;
  {
    const py::gil_scoped_release release;
    answered.answer = auto_search(networks, problem, options, interrupt);
  }
  answered.error = caller.error();
  if (answered.error.is_none()) {
    caller.tell();
  }
  return answered;
}

}  // namespace

void register_auto(py::module_& module) {
  py::class_<CancelToken, std::shared_ptr<CancelToken>>(module, "CancelToken")
      .def(py::init<>())
      .def("cancel", &CancelToken::cancel)
      .def_property_readonly("is_cancelled", &CancelToken::is_cancelled);

  py::class_<Answered>(module, "AutoAnswer")
      .def_property_readonly("plan", [](const Answered& a) { return a.answer.plan; })
      .def_property_readonly("objective", [](const Answered& a) { return a.answer.objective; })
      .def_property_readonly("is_mean", [](const Answered& a) { return a.answer.is_mean; })
      .def_property_readonly("published", [](const Answered& a) { return a.answer.published; })
      .def_property_readonly("impossible", [](const Answered& a) { return a.answer.impossible; })
      .def_property_readonly("interrupted", [](const Answered& a) { return a.answer.interrupted; })
      .def_property_readonly("evaluations", [](const Answered& a) { return a.answer.evaluations; })
      .def_readonly("error", &Answered::error);

  module.def(
      "auto_search",
      [](const CostNetworks& networks, const Problem& problem, int beam_width, int candidates,
         int max_splits, int grid_steps, int threads, std::uint64_t seed,
         std::optional<std::int64_t> evaluations, std::optional<double> seconds,
         std::shared_ptr<CancelToken> cancel, py::object progress) {
        return run(networks, problem,
                   {.search = {.beam_width = beam_width,
                               .candidates = candidates,
                               .max_splits = max_splits,
                               .grid_steps = grid_steps,
                               .threads = threads},
                    .seed = seed,
                    .evaluations = evaluations,
                    .deadline = std::nullopt,
                    .improved = {}},
                   seconds, std::move(cancel), std::move(progress));
      },
      py::arg("networks"), py::arg("problem"), py::kw_only(), py::arg("beam_width") = 3,
      py::arg("candidates") = 10, py::arg("max_splits") = 10, py::arg("grid_steps") = 11,
      py::arg("threads") = 1, py::arg("seed") = 0, py::arg("evaluations") = py::none(),
      py::arg("seconds") = py::none(), py::arg("cancel") = py::none(),
      py::arg("progress") = py::none());

  module.def(
      "objective",
      [](const CostNetworks& networks, const Problem& problem,
         std::vector<std::int64_t> column_splits, Placement placement) {
        return interruptible([&](Interrupt& interrupt) {
          PlanObjective objective(networks, problem.devices());
          return objective.of(evaluate_plan(networks, problem, std::move(column_splits),
                                            std::move(placement), interrupt));
        });
      },
      py::arg("networks"), py::arg("problem"), py::arg("column_splits"), py::arg("placement"));

  module.def(
      "replan",
      [](const CostNetworks& networks, const Problem& problem,
         const std::vector<std::tuple<int, std::int64_t, std::int64_t, int, std::int64_t>>& kept,
         double most_moved, int max_splits, std::uint64_t seed,
         std::optional<std::int64_t> evaluations) {
        std::vector<KeptShard> shards;
        shards.reserve(kept.size());
        for (const auto& [table, column_offset, width, device, bytes] : kept) {
          shards.push_back({.table = table,
                            .column_offset = column_offset,
                            .width = width,
                            .device = device,
                            .bytes = bytes});
        }
        const std::optional<Replanned> found = interruptible([&](Interrupt& interrupt) {
          return replan(networks, problem, shards,
                        {.most_moved = most_moved,
                         .max_splits = max_splits,
                         .seed = seed,
                         .evaluations = evaluations},
                        interrupt);
        });
        return found ? std::optional(std::tuple(found->plan, found->objective, found->moved))
                     : std::nullopt;
      },
      py::arg("networks"), py::arg("problem"), py::arg("kept"), py::kw_only(),
      py::arg("most_moved"), py::arg("max_splits") = 10, py::arg("seed") = 0,
      py::arg("evaluations") = py::none());

  module.def(
      "plain_annealing",
      [](const CostNetworks& networks, const Problem& problem,
         std::vector<std::int64_t> column_splits, Placement placement, double seconds,
         int max_splits, std::uint64_t seed) {
        const Annealed found = interruptible([&](Interrupt& interrupt) {
          const auto start = Interrupt::Clock::now();
          return plain_annealing(
              networks, problem,
              {.column_splits = std::move(column_splits), .placement = std::move(placement)},
              max_splits, seed,
              [&] {
                const std::chrono::duration<double> passed = Interrupt::Clock::now() - start;
                return passed.count() / seconds;
              },
              interrupt);
        });
        return std::tuple(found.objective, found.plan.column_splits, found.plan.placement,
                          found.evaluations);
      },
      py::arg("networks"), py::arg("problem"), py::arg("column_splits"), py::arg("placement"),
      py::kw_only(), py::arg("seconds"), py::arg("max_splits") = 10, py::arg("seed") = 0);

  module.def(
      "exhaustive_search",
      [](const CostNetworks& networks, const Problem& problem, int max_splits) {
        const std::optional<BestOfAll> found = interruptible([&](Interrupt& interrupt) {
          return exhaustive_search(networks, problem, max_splits, interrupt);
        });
        return found ? std::optional(std::pair(found->plan, found->objective)) : std::nullopt;
      },
      py::arg("networks"), py::arg("problem"), py::kw_only(), py::arg("max_splits"));

  module.def(
      "lower_bound",
      [](const CostNetworks& networks, const Problem& problem, double upper, int max_splits) {
        return interruptible([&](Interrupt& interrupt) {
          return lower_bound(networks, problem, upper, max_splits, interrupt);
        });
      },
      py::arg("networks"), py::arg("problem"), py::kw_only(), py::arg("upper"),
      py::arg("max_splits") = 10);
}

}  // namespace neuroshard::binding
