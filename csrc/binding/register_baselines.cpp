#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>

#include "arrays.hpp"
#include "engine/baselines.hpp"
#include "engine/problem.hpp"
#include "interruptible.hpp"
#include "register.hpp"

namespace py = pybind11;

namespace neuroshard::binding {

void register_baselines(py::module_& module) {
  module.def(
      "greedy_baseline",
      [](const Problem& problem, const py::object& key) {
        const Array<double> keys = double_array(key, "key", 1);
        return interruptible(
            [&](Interrupt& interrupt) { return greedy_baseline(problem, keys.values, interrupt); });
      },
      py::arg("problem"), py::arg("key"));

  module.def(
      "random_placement",
      [](const Problem& problem, std::uint64_t seed) {
        return interruptible(
            [&](Interrupt& interrupt) { return random_placement(problem, seed, interrupt); });
      },
      py::arg("problem"), py::arg("seed"));
}

}  // namespace neuroshard::binding
