#include "memory.hpp"

#include <algorithm>
#include <fstream>
#include <string>

namespace neuroshard::bench {

namespace {

/// A size from Linux's proc_pid_status(5), in bytes; 0 where there is no such thing.
std::int64_t status_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) {
      return std::stoll(line.substr(name.size() + 1)) * 1024;
    }
  }
  return 0;
}

}  // namespace

MemoryGrowth::MemoryGrowth() {
  // Lets the peak start anew (proc_pid_clear_refs(5)). Where that is forbidden, an earlier peak may
  // be reported.
  std::ofstream("/proc/self/clear_refs") << "5";
  before_ = status_bytes("VmRSS");
}

std::int64_t MemoryGrowth::peak_bytes() const {
  return std::max<std::int64_t>(0, status_bytes("VmHWM") - before_);
}

}  // namespace neuroshard::bench
