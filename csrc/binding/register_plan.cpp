#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/plan.hpp"
#include "engine/plan_cost.hpp"
#include "interruptible.hpp"
#include "register.hpp"

namespace py = pybind11;

namespace neuroshard::binding {

namespace {

using TableAndWidth = std::pair<int, std::int64_t>;

Plan evaluate_pairs(const CostNetworks& networks, const Problem& problem,
                    const std::vector<std::vector<TableAndWidth>>& shards) {
  std::vector<std::vector<TableColumns>> devices(shards.size());
  for (std::size_t device = 0; device < shards.size(); ++device) {
    for (const auto& [table, width] : shards[device]) {
      devices[device].push_back({.table = table, .width = width});
    }
  }
  return interruptible(
      [&](Interrupt& interrupt) { return evaluate_shards(networks, problem, devices, interrupt); });
}

}  // namespace

void register_plan(py::module_& module) {
  py::class_<Plan>(module, "Plan")
      .def_readonly("cost", &Plan::cost)
      .def_readonly("column_splits", &Plan::column_splits)
      .def_readonly("placement", &Plan::placement)
      .def_readonly("compute", &Plan::compute)
      .def_readonly("forward", &Plan::forward)
      .def_readonly("backward", &Plan::backward)
      .def_readonly("dim_sums", &Plan::output_dim_sums)
      .def_readonly("memory_bytes", &Plan::memory_bytes);

  module.def(
      "evaluate",
      [](const CostNetworks& networks, const Problem& problem,
         std::vector<std::int64_t> column_splits, Placement placement) {
        return interruptible([&](Interrupt& interrupt) {
          return evaluate_plan(networks, problem, std::move(column_splits), std::move(placement),
                               interrupt);
        });
      },
      py::arg("networks"), py::arg("problem"), py::arg("column_splits"), py::arg("placement"));

  module.def("evaluate_shards", &evaluate_pairs, py::arg("networks"), py::arg("problem"),
             py::arg("shards"));
}

}  // namespace neuroshard::binding
