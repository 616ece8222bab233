#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <vector>

namespace neuroshard::binding {

/// A copy of a numpy array, row by row.
template <typename T>
struct Array {
  std::vector<T> values;
  std::vector<std::size_t> shape;
};

/// Copies anything that numpy takes for an array of real numbers. Throws py::value_error that names
/// the argument where it is something else, has another number of dimensions, or does not fit into
/// T.
Array<float> float_array(const pybind11::object& object, const std::string& name,
                         std::size_t dimensions);
Array<double> double_array(const pybind11::object& object, const std::string& name,
                           std::size_t dimensions);
Array<std::int64_t> integer_array(const pybind11::object& object, const std::string& name,
                                  std::size_t dimensions);

}  // namespace neuroshard::binding
