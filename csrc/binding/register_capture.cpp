#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "engine/capture.hpp"
#include "register.hpp"

namespace py = pybind11;

namespace neuroshard::binding {

void register_capture(py::module_& module) {
  module.def(
      "write_capture",
      [](const CostNetworks& networks, const Problem& problem, const std::optional<Plan>& plan,
         int beam_width, int candidates, int max_splits, int grid_steps, int threads) {
        return py::bytes(write_capture(networks, problem,
                                       {.beam_width = beam_width,
                                        .candidates = candidates,
                                        .max_splits = max_splits,
                                        .grid_steps = grid_steps,
                                        .threads = threads},
                                       plan));
      },
      py::arg("networks"), py::arg("problem"), py::arg("plan"), py::kw_only(),
      py::arg("beam_width"), py::arg("candidates"), py::arg("max_splits"), py::arg("grid_steps"),
      py::arg("threads"));
}

}  // namespace neuroshard::binding
