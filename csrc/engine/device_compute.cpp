#include "device_compute.hpp"

#include <algorithm>

#include "kernels/kernels.hpp"

namespace neuroshard {

DeviceCompute device_compute(const SetNetwork& set, const ShardCatalog& catalog,
                             std::span<const ShardCatalog::Kind> kinds) {
  DeviceCompute result{.sums = AlignedVector<float>(set.sums_size()), .cost = set.empty_cost()};
  std::copy(set.empty_sums().begin(), set.empty_sums().end(), result.sums.begin());
  // Only the first lane is used.
  AlignedVector<float> unused(set.sums_size());
  PerLane<float*> sums_of;
  sums_of.fill(unused.data());
  sums_of[0] = result.sums.data();
  PerLane<const float*> sums_before;
  std::copy(sums_of.begin(), sums_of.end(), sums_before.begin());
  PerLane<float> costs{};
  SetNetwork::Workspace workspace;
  for (const ShardCatalog::Kind kind : kinds) {
    PerLane<const float*> contributions;
    contributions.fill(catalog.contribution(kind));
    set.add(sums_before, contributions, sums_of, costs, workspace);
    result.cost = costs[0];
  }
  return result;
}

}  // namespace neuroshard
