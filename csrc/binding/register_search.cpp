#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <vector>

#include "engine/cost_networks.hpp"
#include "engine/plan.hpp"
#include "engine/problem.hpp"
#include "engine/search.hpp"
#include "engine/shard_catalog.hpp"
#include "engine/workers.hpp"
#include "interruptible.hpp"
#include "register.hpp"

namespace py = pybind11;

namespace neuroshard::binding {

namespace {

std::optional<Plan> run_search(const CostNetworks& networks, const Problem& problem,
                               const SearchOptions& options) {
  return interruptible(
      [&](Interrupt& interrupt) { return search(networks, problem, options, interrupt); });
}

py::array_t<float> single_table_compute(const CostNetworks& networks, const Problem& problem) {
  const auto costs = interruptible([&](Interrupt& interrupt) {
    Workers workers(1, interrupt);
    const ShardCatalog catalog(networks, problem, workers, interrupt);
    std::vector<float> values;
    values.reserve(static_cast<std::size_t>(problem.tables()));
    for (int table = 0; table < problem.tables(); ++table) {
      values.push_back(catalog.single_cost(table));
    }
    return values;
  });
  return py::array_t<float>(static_cast<py::ssize_t>(costs.size()), costs.data());
}

}  // namespace

void register_search(py::module_& module) {
  module.def(
      "search",
      [](const CostNetworks& networks, const Problem& problem, int beam_width, int candidates,
         int max_splits, int grid_steps, int threads) {
        return run_search(networks, problem,
                          {.beam_width = beam_width,
                           .candidates = candidates,
                           .max_splits = max_splits,
                           .grid_steps = grid_steps,
                           .threads = threads});
      },
      py::arg("networks"), py::arg("problem"), py::kw_only(), py::arg("beam_width") = 3,
      py::arg("candidates") = 10, py::arg("max_splits") = 10, py::arg("grid_steps") = 11,
      py::arg("threads") = 1);

  module.def(
      "table_wise",
      [](const CostNetworks& networks, const Problem& problem, int grid_steps, int threads) {
        return run_search(networks, problem,
                          {.max_splits = 0, .grid_steps = grid_steps, .threads = threads});
      },
      py::arg("networks"), py::arg("problem"), py::kw_only(), py::arg("grid_steps") = 11,
      py::arg("threads") = 1);

  module.def("single_table_compute", &single_table_compute, py::arg("networks"),
             py::arg("problem"));
}

}  // namespace neuroshard::binding
