#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "engine/kernels/kernels.hpp"
#include "register.hpp"

namespace py = pybind11;

namespace neuroshard::binding {

void register_kernels(py::module_& module) {
  module.def("isa", &isa);
  module.def("supported_isas", &supported_isas);
  module.def("use_isa", &use_isa, py::arg("name"));
}

}  // namespace neuroshard::binding
