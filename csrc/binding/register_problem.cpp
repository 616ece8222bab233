#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <string>
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

/// One cap for all devices, or one for each.
std::vector<std::int64_t> memory_caps(const py::object& memory_bytes, std::int64_t devices) {
  constexpr std::int64_t kMaxDevices = std::int64_t{1} << 16;
  if (devices < 1 || devices > kMaxDevices) {
    throw py::value_error("devices must lie between 1 and 65536, got " + std::to_string(devices));
  }
  if (PyIndex_Check(memory_bytes.ptr()) != 0 && !py::isinstance<py::array>(memory_bytes)) {
    return std::vector<std::int64_t>(static_cast<std::size_t>(devices),
                                     memory_bytes.cast<std::int64_t>());
  }
  std::vector<std::int64_t> caps = integer_array(memory_bytes, "memory_bytes", 1).values;
  if (!std::cmp_equal(caps.size(), devices)) {
    throw py::value_error("memory_bytes must have one entry for each of the " +
                          std::to_string(devices) + " devices, it has " +
                          std::to_string(caps.size()));
  }
  return caps;
}

std::vector<std::int64_t> of_tables(const py::object& values, const char* name) {
  return values.is_none() ? std::vector<std::int64_t>() : integer_array(values, name, 1).values;
}

Problem make_problem(const py::object& features, const py::object& features_per_column,
                     const py::object& features_per_doubling, const py::object& dims,
                     const py::object& output_width, const py::object& bytes_per_column,
                     const py::object& bytes_fixed, std::int64_t devices,
                     const py::object& memory_bytes, const py::object& least_widths,
                     const py::object& split_widths, const py::object& pinned) {
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
  return Problem(std::move(tables), {.memory_bytes = memory_caps(memory_bytes, devices),
                                     .least_widths = of_tables(least_widths, "least_widths"),
                                     .split_widths = of_tables(split_widths, "split_widths"),
                                     .pinned = of_tables(pinned, "pinned")});
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
           py::arg("memory_bytes"), py::kw_only(), py::arg("least_widths") = py::none(),
           py::arg("split_widths") = py::none(), py::arg("pinned") = py::none())
      .def_property_readonly("tables", &Problem::tables)
      .def_property_readonly("devices", &Problem::devices)
      .def_property_readonly("memory_bytes", [](const Problem& problem) {
        return problem.constraints().memory_bytes;
      });

  module.def("split_shards", &shard_tuples, py::arg("problem"), py::arg("column_splits"),
             py::call_guard<py::gil_scoped_release>());
}

}  // namespace neuroshard::binding
