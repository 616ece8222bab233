#pragma once

#include <span>

#include "aligned.hpp"
#include "set_network.hpp"
#include "shard_catalog.hpp"

namespace neuroshard {

/// What the set network says of one device.
struct DeviceCompute {
  AlignedVector<float> sums;
  float cost;  // ms
};

/// Of a device that holds shards of these kinds, added in this order.
DeviceCompute device_compute(const SetNetwork& set, const ShardCatalog& catalog,
                             std::span<const ShardCatalog::Kind> kinds);

}  // namespace neuroshard
