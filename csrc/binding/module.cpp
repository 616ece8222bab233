// The compiled part of the package: numpy arrays in, plain data out. Signatures and units are
// described in python/neuroshard_fast/_core.pyi.

#include <pybind11/pybind11.h>

#include "register.hpp"

// Objects never change after they are made, so no lock is needed.
PYBIND11_MODULE(_core, module, pybind11::mod_gil_not_used()) {
  using namespace neuroshard::binding;  // NOLINT(google-build-using-namespace)
  module.doc() = "Cost-network inference and sharding search.";
  register_networks(module);
  register_problem(module);
  register_plan(module);
  register_search(module);
  register_auto(module);
  register_baselines(module);
  register_capture(module);
  register_kernels(module);
}
