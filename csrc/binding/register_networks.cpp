#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "engine/cost_networks.hpp"
#include "engine/network.hpp"
#include "register.hpp"

namespace py = pybind11;

namespace neuroshard::binding {

namespace {

using LayerArrays = std::pair<py::object, py::object>;  // weight, bias

AffineLayer make_layer(const LayerArrays& arrays, const std::string& name) {
  const Array<float> weight = float_array(arrays.first, name + " weight", 2);
  Array<float> bias = float_array(arrays.second, name + " bias", 1);
  if (weight.shape[0] != bias.shape[0] || weight.values.empty()) {
    throw py::value_error(
        name + " must have a weight of shape [outputs, inputs] and a bias of shape [outputs]");
  }
  return AffineLayer(weight.values, std::move(bias.values), weight.shape[1]);
}

Network make_network(const std::vector<LayerArrays>& layer_arrays,
                     const std::optional<py::object>& feature_mean,
                     const std::optional<py::object>& feature_std) {
  std::vector<AffineLayer> layers;
  layers.reserve(layer_arrays.size());
  for (const LayerArrays& arrays : layer_arrays) {
    layers.push_back(make_layer(arrays, "layers[" + std::to_string(layers.size()) + "]"));
  }
  std::vector<float> mean;
  std::vector<float> deviation;
  if (feature_mean) {
    mean = float_array(*feature_mean, "feature_mean", 1).values;
  }
  if (feature_std) {
    deviation = float_array(*feature_std, "feature_std", 1).values;
  }
  return Network(std::move(layers), std::move(mean), std::move(deviation));
}

}  // namespace

void register_networks(py::module_& module) {
  py::class_<Network>(module, "Network")
      .def(py::init(&make_network), py::arg("layers"), py::arg("feature_mean") = py::none(),
           py::arg("feature_std") = py::none())
      .def_property_readonly("inputs", &Network::inputs)
      .def_property_readonly("outputs", &Network::outputs);

  py::class_<SharedCommunication>(module, "SharedCommunication")
      .def(py::init<Network, Network, Network, Network, std::int64_t, std::int64_t>(),
           py::arg("forward_device"), py::arg("forward_head"), py::arg("backward_device"),
           py::arg("backward_head"), py::kw_only(), py::arg("devices_per_node"),
           py::arg("batch_size"));

  py::class_<CostNetworks>(module, "CostNetworks")
      .def(py::init([](const Network& table, const Network& set, std::map<int, Network> forward,
                       std::map<int, Network> backward) {
             return CostNetworks(table, set,
                                 PerCountCommunication(std::move(forward), std::move(backward)));
           }),
           py::arg("table"), py::arg("set"), py::arg("forward"), py::arg("backward"))
      .def(py::init([](const Network& table, const Network& set,
                       const SharedCommunication& communication) {
             return CostNetworks(table, set, communication);
           }),
           py::arg("table"), py::arg("set"), py::arg("communication"))
      .def_property_readonly("features", &CostNetworks::features)
      .def_property_readonly(
          "device_counts", [](const CostNetworks& networks) -> std::optional<std::vector<int>> {
            const auto* per_count = std::get_if<PerCountCommunication>(&networks.communication());
            return per_count != nullptr ? std::optional(per_count->device_counts()) : std::nullopt;
          });
}

}  // namespace neuroshard::binding
