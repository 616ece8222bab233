#include "options.hpp"

#include <charconv>
#include <cstddef>
#include <system_error>

#include "engine/search.hpp"

namespace neuroshard::bench {

namespace {

int parse_int(std::string_view option, std::string_view text, int low, int high) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    throw UsageError(std::string(option) + " takes a whole number between " + std::to_string(low) +
                     " and " + std::to_string(high) + ", got '" + std::string(text) + "'");
  }
  return value;
}

}  // namespace

std::optional<Options> parse_options(const std::vector<std::string_view>& arguments) {
  Options options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    const auto value = [&] {
      if (++i == arguments.size()) {
        throw UsageError(std::string(argument) + " takes a value");
      }
      return arguments[i];
    };
    if (argument == "--help" || argument == "-h") {
      return std::nullopt;
    }
    if (argument == "--threads") {
      options.threads = parse_int(argument, value(), 1, SearchOptions::kMaxThreads);
    } else if (argument == "--repeat") {
      options.repeat = parse_int(argument, value(), 1, 1'000'000);
    } else if (argument == "--isa") {
      options.isa = value();
    } else if (argument == "--verify") {
      options.verify = true;
    } else if (argument == "--json") {
      options.json = true;
    } else if (argument.starts_with('-')) {
      throw UsageError("unknown option '" + std::string(argument) + "'");
    } else if (!options.capture.empty()) {
      throw UsageError("one capture file at a time, '" + std::string(argument) + "' is another");
    } else {
      options.capture = argument;
    }
  }
  if (options.capture.empty()) {
    throw UsageError("which capture file?");
  }
  return options;
}

}  // namespace neuroshard::bench
