#include "arrays.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace py = pybind11;

namespace neuroshard::binding {

namespace {

/// Copies an array whose numpy kind is one of `kinds` and at most 8 bytes wide.
template <typename T>
Array<T> copy_array(const py::object& object, const std::string& name, std::size_t dimensions,
                    const std::string& kinds, const std::string& content) {
  const py::array any = py::array::ensure(object);
  if (!any || kinds.find(any.dtype().kind()) == std::string::npos || any.itemsize() > 8) {
    throw py::value_error(name + " must be an array of " + content);
  }
  if (!std::cmp_equal(any.ndim(), dimensions)) {
    throw py::value_error(name + " must have " + std::to_string(dimensions) +
                          " dimension(s), it has " + std::to_string(any.ndim()));
  }
  const auto array = py::array_t<T, py::array::c_style | py::array::forcecast>::ensure(any);
  if (!array) {
    throw py::value_error(name + " must be an array of " + content);
  }
  Array<T> copy;
  copy.values.assign(array.data(), array.data() + array.size());
  copy.shape.assign(array.shape(), array.shape() + array.ndim());
  return copy;
}

}  // namespace

Array<double> double_array(const py::object& object, const std::string& name,
                           std::size_t dimensions) {
  Array<double> array = copy_array<double>(object, name, dimensions, "fiu", "real numbers");
  if (!std::all_of(array.values.begin(), array.values.end(),
                   [](double value) { return std::isfinite(value); })) {
    throw py::value_error(name + " must hold finite numbers");
  }
  return array;
}

Array<float> float_array(const py::object& object, const std::string& name,
                         std::size_t dimensions) {
  Array<double> array = double_array(object, name, dimensions);
  Array<float> narrow;
  narrow.shape = std::move(array.shape);
  narrow.values.reserve(array.values.size());
  for (const double value : array.values) {
    if (std::abs(value) > static_cast<double>(std::numeric_limits<float>::max())) {
      throw py::value_error(name + " must hold numbers within the range of float32");
    }
    narrow.values.push_back(static_cast<float>(value));
  }
  return narrow;
}

Array<std::int64_t> integer_array(const py::object& object, const std::string& name,
                                  std::size_t dimensions) {
  // Unsigned numbers beyond the range of int64 turn negative, and no argument may be negative.
  return copy_array<std::int64_t>(object, name, dimensions, "iu", "integers");
}

}  // namespace neuroshard::binding
