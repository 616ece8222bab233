#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "engine/problem.hpp"
#include "engine/shards.hpp"
#include "register.hpp"

namespace py = pybind11;

namespace neuroshard::binding {

namespace {

Problem make_problem(const py::object& features, const py::object& features_per_column,
                     const py::object& features_per_doubling, const py::object& dims,
                     const py::object& output_width, const py::object& bytes_per_column,
                     const py::object& bytes_fixed, std::int64_t devices,
                     std::int64_t memory_bytes) {
  Array<float> feature_array = float_array(features, "features", 2);
  Problem::Tables tables{
      .features = std::move(feature_array.values),
      .features_per_column = float_array(features_per_column, "features_per_column", 2).values,
      .features_per_doubling =
          float_array(features_per_doubling, "features_per_doubling", 1).values,
      .widths = integer_array(dims, "dims", 1).values,
      .output_widths = double_array(output_width, "output_width", 1).values,
      .bytes_per_column = integer_array(bytes_per_column, "bytes_per_column", 1).values,
      .bytes_fixed = integer_array(bytes_fixed, "bytes_fixed", 1).values};
  if (feature_array.shape[0] != tables.widths.size()) {
    throw py::value_error("features must have one row for each entry of dims");
  }
  return Problem(std::move(tables), devices, memory_bytes);
}

std::vector<std::tuple<int, std::int64_t, std::int64_t>> shard_tuples(
    const Problem& problem, const std::vector<std::int64_t>& column_splits) {
  std::vector<std::tuple<int, std::int64_t, std::int64_t>> tuples;
  for (const Shard& shard : split_shards(problem, column_splits)) {
    tuples.emplace_back(shard.table, shard.column_offset, shard.width);
  }
  return tuples;
}

}  // namespace

void register_problem(py::module_& module) {
  py::class_<Problem>(module, "Problem")
      .def(py::init(&make_problem), py::arg("features"), py::arg("features_per_column"),
           py::arg("features_per_doubling"), py::arg("dims"), py::arg("output_width"),
           py::arg("bytes_per_column"), py::arg("bytes_fixed"), py::arg("devices"),
           py::arg("memory_bytes"))
      .def_property_readonly("tables", &Problem::tables)
      .def_property_readonly("devices", &Problem::devices)
      .def_property_readonly("memory_bytes", &Problem::memory_bytes);

  module.def("split_shards", &shard_tuples, py::arg("problem"), py::arg("column_splits"),
             py::call_guard<py::gil_scoped_release>());
}

}  // namespace neuroshard::binding
