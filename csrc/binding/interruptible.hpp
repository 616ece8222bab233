#pragma once

#include <pybind11/pybind11.h>

#include <type_traits>

#include "engine/interrupt.hpp"

namespace neuroshard::binding {

/// Calls `work(interrupt)` without the GIL; a signal such as Ctrl-C ends it with Python's
/// exception.
template <typename Work>
auto interruptible(const Work& work) -> std::invoke_result_t<Work, Interrupt&> {
  Interrupt interrupt([] {
    const pybind11::gil_scoped_acquire acquire;
    return PyErr_CheckSignals() != 0;
  });
  try {
    const pybind11::gil_scoped_release release;
    return work(interrupt);
  } catch (const Interrupted&) {
    throw pybind11::error_already_set();
  }
}

}  // namespace neuroshard::binding
