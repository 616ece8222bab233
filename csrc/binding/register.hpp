#pragma once

#include <pybind11/pybind11.h>

namespace neuroshard::binding {

void register_networks(pybind11::module_& module);
void register_problem(pybind11::module_& module);
void register_plan(pybind11::module_& module);
void register_search(pybind11::module_& module);
void register_auto(pybind11::module_& module);
void register_baselines(pybind11::module_& module);
void register_capture(pybind11::module_& module);
void register_kernels(pybind11::module_& module);

}  // namespace neuroshard::binding
