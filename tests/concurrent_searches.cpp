// Searches at the same time that share their cost networks and problem, for the thread sanitizer:
// each plans the captured problems with several threads and must find the captured plans.
//
// usage: concurrent_searches CAPTURE...

#include <atomic>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "engine/capture.hpp"
#include "engine/interrupt.hpp"
#include "engine/search.hpp"

namespace {

using namespace neuroshard;  // NOLINT(google-build-using-namespace)

Capture read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return read_capture(std::string{std::istreambuf_iterator<char>(file), {}});
}

bool finds_the_captured_plan(const Capture& capture) {
  SearchOptions options = capture.options;
  options.threads = 3;
  Interrupt never;
  const std::optional<Plan> plan = search(capture.networks, capture.problem, options, never);
  return plan && capture.answer && plan->column_splits == capture.answer->column_splits &&
         plan->placement == capture.answer->placement;
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int kSearches = 3;
  const std::vector<std::string> paths(argv + 1, argv + argc);
  if (paths.empty()) {  // else a check of nothing would pass
    std::cerr << "usage: concurrent_searches CAPTURE...\n";
    return 2;
  }
  try {
    for (const std::string& path : paths) {
      const Capture capture = read(path);
      std::atomic<int> right = 0;
      {
        std::vector<std::jthread> searches;
        searches.reserve(kSearches);
        for (int i = 0; i < kSearches; ++i) {
          searches.emplace_back([&] { right += finds_the_captured_plan(capture) ? 1 : 0; });
        }
      }
      if (right != kSearches) {
        throw std::runtime_error(path + ": not every search found the captured plan");
      }
      std::cout << path << ": " << kSearches << " searches at once found the captured plan\n";
    }
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return EXIT_FAILURE;
  }
}
