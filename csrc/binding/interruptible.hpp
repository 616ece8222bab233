#pragma once

#include <pybind11/pybind11.h>

#include <functional>
#include <type_traits>
#include <utility>

#include "engine/interrupt.hpp"

namespace neuroshard::binding {

/// Whether this is the thread that Python handles signals on.
inline bool on_main_thread() {
  const auto threading = pybind11::module_::import("threading");
  const pybind11::object main_ident = threading.attr("main_thread")().attr("ident");
  return main_ident.equal(threading.attr("get_ident")());
}

/// Calls `work(interrupt)` without the GIL. On Python's main thread, a signal such as Ctrl-C ends
/// it with Python's exception.
template <typename Work>
auto interruptible(const Work& work) -> std::invoke_result_t<Work, Interrupt&> {
  std::function<bool()> should_stop;
  if (on_main_thread()) {
    should_stop = [] {
      const pybind11::gil_scoped_acquire acquire;
      return PyErr_CheckSignals() != 0;
    };
  }
  Interrupt interrupt(std::move(should_stop));
  try {
    const pybind11::gil_scoped_release release;
    return work(interrupt);
  } catch (const Interrupted&) {
    throw pybind11::error_already_set();
  }
}

}  // namespace neuroshard::binding
