#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <vector>

#include "engine/plan.hpp"
#include "engine/plan_cost.hpp"
#include "register.hpp"

namespace py = pybind11;

namespace neuroshard::binding {

void register_plan(py::module_& module) {
  py::class_<Plan>(module, "Result")
      .def_readonly("cost", &Plan::cost)
      .def_readonly("column_splits", &Plan::column_splits)
      .def_readonly("placement", &Plan::placement)
      .def_readonly("compute", &Plan::compute)
      .def_readonly("forward", &Plan::forward)
      .def_readonly("backward", &Plan::backward)
      .def_readonly("dim_sums", &Plan::dim_sums)
      .def_readonly("memory_bytes", &Plan::memory_bytes);

  module.def("evaluate", &evaluate_plan, py::arg("networks"), py::arg("problem"),
             py::arg("column_splits"), py::arg("placement"),
             py::call_guard<py::gil_scoped_release>());
}

}  // namespace neuroshard::binding
