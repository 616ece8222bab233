#include "capture.hpp"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <map>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "shards.hpp"

namespace neuroshard {

// A file is a header and a payload. The header: magic, version, length and checksum of the payload.
// The payload: networks, problem, options, answer, field after field as the functions below write
// and read them. Every list is its length, 64 bits, and its elements.

namespace {

static_assert(std::endian::native == std::endian::little, "capture files are little-endian");

constexpr std::string_view kMagic = "NSCAPTUR";
constexpr std::uint32_t kVersion = 3;

/// FNV-1a: finds damage, not forgery; what is read is checked all the same.
std::uint64_t checksum(std::string_view bytes) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : bytes) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  }
  return hash;
}

class Writer {
 public:
  template <typename T>
  void number(T value) {
    static_assert(std::is_arithmetic_v<T>);
    list_elements(&value, 1);
  }

  template <typename T>
  void list(const std::vector<T>& values) {
    number(static_cast<std::uint64_t>(values.size()));
    list_elements(values.data(), values.size());
  }

  const std::string& bytes() const { return bytes_; }

 private:
  template <typename T>
  void list_elements(const T* values, std::size_t count) {
    const std::size_t old = bytes_.size();
    bytes_.resize(old + count * sizeof(T));
    if (count > 0) {
      std::memcpy(bytes_.data() + old, values, count * sizeof(T));
    }
  }

  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T number() {
    static_assert(std::is_arithmetic_v<T>);
    T value{};
    const std::string_view bytes = take(1, sizeof(T));
    bytes.copy(reinterpret_cast<char*>(&value), bytes.size());
    return value;
  }

  template <typename T>
  std::vector<T> list() {
    const std::size_t count = length(sizeof(T));
    const std::string_view elements = take(count, sizeof(T));
    std::vector<T> values(count);
    if (count > 0) {
      std::memcpy(values.data(), elements.data(), elements.size());
    }
    return values;
  }

  /// Length of a list whose elements take at least `element_size` bytes each.
  std::size_t length(std::size_t element_size) {
    const auto count = number<std::uint64_t>();
    if (count > bytes_.size() / element_size) {
      refuse();
    }
    return static_cast<std::size_t>(count);
  }

  std::string_view rest() const { return bytes_; }

  [[noreturn]] static void refuse() {
    throw std::invalid_argument("the capture file is cut short or damaged");
  }

 private:
  std::string_view take(std::size_t count, std::size_t size) {
    if (count > bytes_.size() / size) {
      refuse();
    }
    const std::string_view taken = bytes_.substr(0, count * size);
    bytes_.remove_prefix(taken.size());
    return taken;
  }

  std::string_view bytes_;
};

void write_network(Writer& writer, const Network& network) {
  writer.number(static_cast<std::uint64_t>(network.layers().size()));
  for (const AffineLayer& layer : network.layers()) {
    writer.list(layer.bias());
    writer.list(layer.weights());
  }
  writer.list(network.mean());
  writer.list(network.deviation());
}

Network read_network(Reader& reader) {
  std::vector<AffineLayer> layers;
  for (std::size_t left = reader.length(sizeof(float)); left > 0; --left) {
    std::vector<float> bias = reader.list<float>();
    const std::vector<float> weights = reader.list<float>();
    const std::size_t inputs = bias.empty() ? 0 : weights.size() / bias.size();
    layers.emplace_back(weights, std::move(bias), inputs);
  }
  std::vector<float> mean = reader.list<float>();
  std::vector<float> deviation = reader.list<float>();
  return {std::move(layers), std::move(mean), std::move(deviation)};
}

enum class CommunicationKind : std::uint8_t { kPerCount, kShared };

void write_communication(Writer& writer, const CommunicationNetworks& communication, int devices) {
  if (const auto* shared = std::get_if<SharedCommunication>(&communication)) {
    writer.number(static_cast<std::uint8_t>(CommunicationKind::kShared));
    for (const SharedNetworks* networks : {&shared->forward(), &shared->backward()}) {
      write_network(writer, networks->device());
      write_network(writer, networks->head());
    }
    writer.number(shared->devices_per_node());
    writer.number(shared->batch_size());
    return;
  }
  const auto& networks = std::get<PerCountCommunication>(communication).networks(devices);
  writer.number(static_cast<std::uint8_t>(CommunicationKind::kPerCount));
  writer.number(std::int32_t{devices});
  write_network(writer, networks.forward);
  write_network(writer, networks.backward);
}

CommunicationNetworks read_communication(Reader& reader) {
  const auto kind = reader.number<std::uint8_t>();
  if (kind == static_cast<std::uint8_t>(CommunicationKind::kShared)) {
    Network forward_device = read_network(reader);
    Network forward_head = read_network(reader);
    Network backward_device = read_network(reader);
    Network backward_head = read_network(reader);
    const auto devices_per_node = reader.number<std::int64_t>();
    const auto batch_size = reader.number<std::int64_t>();
    return SharedCommunication(std::move(forward_device), std::move(forward_head),
                               std::move(backward_device), std::move(backward_head),
                               devices_per_node, batch_size);
  }
  if (kind != static_cast<std::uint8_t>(CommunicationKind::kPerCount)) {
    Reader::refuse();
  }
  const auto devices = reader.number<std::int32_t>();
  std::map<int, Network> forward;
  std::map<int, Network> backward;
  forward.emplace(devices, read_network(reader));
  backward.emplace(devices, read_network(reader));
  return PerCountCommunication(std::move(forward), std::move(backward));
}

void write_problem(Writer& writer, const Problem& problem) {
  const Problem::Tables& tables = problem.all_tables();
  writer.list(tables.features);
  writer.list(tables.features_per_column);
  writer.list(tables.features_per_doubling);
  writer.list(tables.widths);
  writer.list(tables.output_widths);
  writer.list(tables.bytes_per_column);
  writer.list(tables.bytes_fixed);
  const Problem::Constraints& constraints = problem.constraints();
  writer.list(constraints.memory_bytes);
  writer.list(constraints.least_widths);
  writer.list(constraints.split_widths);
  writer.list(constraints.pinned);
}

Problem read_problem(Reader& reader) {
  Problem::Tables tables;
  tables.features = reader.list<float>();
  tables.features_per_column = reader.list<float>();
  tables.features_per_doubling = reader.list<float>();
  tables.widths = reader.list<std::int64_t>();
  tables.output_widths = reader.list<double>();
  tables.bytes_per_column = reader.list<std::int64_t>();
  tables.bytes_fixed = reader.list<std::int64_t>();
  Problem::Constraints constraints;
  constraints.memory_bytes = reader.list<std::int64_t>();
  constraints.least_widths = reader.list<std::int64_t>();
  constraints.split_widths = reader.list<std::int64_t>();
  constraints.pinned = reader.list<std::int64_t>();
  return {std::move(tables), std::move(constraints)};
}

void write_options(Writer& writer, const SearchOptions& options) {
  for (const int value : {options.beam_width, options.candidates, options.max_splits,
                          options.grid_steps, options.threads}) {
    writer.number(std::int32_t{value});
  }
}

SearchOptions read_options(Reader& reader) {
  SearchOptions options;
  for (int* value : {&options.beam_width, &options.candidates, &options.max_splits,
                     &options.grid_steps, &options.threads}) {
    *value = reader.number<std::int32_t>();
  }
  check_options(options);
  return options;
}

/// Throws std::invalid_argument where no search could have returned `plan` for `problem`.
void check_plan(const Plan& plan, const Problem& problem) {
  try {
    const std::vector<Shard> shards = split_shards(problem, plan.column_splits);
    check_placement(plan.placement, problem.devices(), shards.size());
    check_constraints(problem, shards, plan.placement);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string("plan does not fit the problem: ") + error.what());
  }
}

void write_answer(Writer& writer, const std::optional<Plan>& plan) {
  writer.number(static_cast<std::uint8_t>(plan.has_value()));
  if (plan) {
    writer.number(plan->cost);
    writer.list(plan->column_splits);
    writer.number(static_cast<std::uint64_t>(plan->placement.size()));
    for (const std::vector<std::int64_t>& shards : plan->placement) {
      writer.list(shards);
    }
  }
}

std::optional<Capture::Answer> read_answer(Reader& reader) {
  if (reader.number<std::uint8_t>() == 0) {
    return std::nullopt;
  }
  Capture::Answer answer;
  answer.cost = reader.number<double>();
  if (!std::isfinite(answer.cost)) {
    Reader::refuse();
  }
  answer.column_splits = reader.list<std::int64_t>();
  answer.placement.resize(reader.length(sizeof(std::uint64_t)));
  for (std::vector<std::int64_t>& shards : answer.placement) {
    shards = reader.list<std::int64_t>();
  }
  return answer;
}

}  // namespace

std::string write_capture(const CostNetworks& networks, const Problem& problem,
                          const SearchOptions& options, const std::optional<Plan>& plan) {
  check_options(options);
  if (plan) {
    check_plan(*plan, problem);
  }
  Writer payload;
  write_network(payload, networks.table());
  write_network(payload, networks.set().network());
  write_communication(payload, networks.communication(), problem.devices());
  write_problem(payload, problem);
  write_options(payload, options);
  write_answer(payload, plan);

  Writer header;
  header.number(kVersion);
  header.number(static_cast<std::uint64_t>(payload.bytes().size()));
  header.number(checksum(payload.bytes()));
  return std::string(kMagic) + header.bytes() + payload.bytes();
}

Capture read_capture(std::string_view bytes) {
  if (!bytes.starts_with(kMagic)) {
    throw std::invalid_argument("this is not a capture file");
  }
  Reader header(bytes.substr(kMagic.size()));
  const auto version = header.number<std::uint32_t>();
  if (version != kVersion) {
    throw std::invalid_argument("the capture file is of version " + std::to_string(version) +
                                ", this program reads version " + std::to_string(kVersion));
  }
  const auto length = header.number<std::uint64_t>();
  const auto sum = header.number<std::uint64_t>();
  if (header.rest().size() != length || checksum(header.rest()) != sum) {
    Reader::refuse();
  }

  Reader payload(header.rest());
  Network table = read_network(payload);
  Network set = read_network(payload);
  CommunicationNetworks communication = read_communication(payload);
  Problem problem = read_problem(payload);
  const SearchOptions options = read_options(payload);
  std::optional<Capture::Answer> answer = read_answer(payload);
  if (!payload.rest().empty()) {
    Reader::refuse();
  }
  return {.networks = CostNetworks(std::move(table), std::move(set), std::move(communication)),
          .problem = std::move(problem),
          .options = options,
          .answer = std::move(answer)};
}

}  // namespace neuroshard
