#include "replan.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "aligned.hpp"
#include "device_compute.hpp"
#include "local_search.hpp"
#include "plan_cost.hpp"
#include "plan_objective.hpp"
#include "shard_catalog.hpp"
#include "split_plan.hpp"
#include "workers.hpp"

namespace neuroshard {

namespace {

using Kind = ShardCatalog::Kind;

constexpr int kNowhere = -1;
constexpr double kForNothing = 0.25;  // of the time, for changes that move nothing

std::size_t index(int number) { return static_cast<std::size_t>(number); }

/// Columns of a table on a device.
struct Leaf {
  std::int64_t column_offset;
  std::int64_t width;
  int device;
};

class Replan {
 public:
  Replan(const CostNetworks& networks, const Problem& problem, const std::vector<KeptShard>& kept,
         const ReplanOptions& options, Interrupt& interrupt)
      : networks_(networks),
        problem_(problem),
        kept_(kept),
        options_(options),
        interrupt_(interrupt),
        workers_(1, interrupt),
        catalog_(networks, problem, workers_, interrupt),
        bytes_(index(problem.devices())),
        held_(index(problem.devices())) {}

  std::optional<Replanned> run() {
    take_up();
    if (!place_the_others() || !make_room()) {
      return std::nullopt;
    }
    LocalSearch local_search(networks_, problem_, catalog_,
                             std::max(options_.max_splits, plan_.splits), options_.seed,
                             interrupt_);
    local_search.keep_cool();
    // First what moves nothing: where to put what is new, and splits.
    const double moved_already = moved();
    improve(local_search, moved_already, 0.0, kForNothing);
    if (options_.most_moved > moved_already) {
      improve(local_search, options_.most_moved, kForNothing, 1.0);
    }
    SplitsAndPlacement found = splits();
    Plan plan = evaluate_plan(networks_, problem_, catalog_, std::move(found.column_splits),
                              std::move(found.placement), interrupt_);
    PlanObjective objective(networks_, problem_.devices());
    const double cost = objective.of(plan);
    return Replanned{.plan = std::move(plan),
                     .objective = cost,
                     .moved = moved(),
                     .evaluations = local_search.evaluations()};
  }

 private:
  /// Makes the plan cheaper from one part of the time to another, moving so many bytes at most.
  void improve(LocalSearch& local_search, double most_moved, double begin, double end) {
    local_search.keep_near(origins_, most_moved);
    local_search.start(plan_);
    local_search.run([&](std::int64_t evaluations) {
      return (part_over(local_search, evaluations) - begin) / (end - begin);
    });
    plan_ = local_search.best();
  }

  /// How much of the time is over. Where nothing else is said it is counted in steps: most of what
  /// is drawn may not be allowed to move, so that few plans are evaluated in each.
  double part_over(const LocalSearch& local_search, std::int64_t evaluations) const {
    if (options_.evaluations) {
      return static_cast<double>(evaluations) /
             static_cast<double>(std::max<std::int64_t>(1, *options_.evaluations));
    }
    constexpr double kNanoseconds = 8e6;
    constexpr double kStep = 20e3;  // as measured
    constexpr double kDevice = 2e3;
    return static_cast<double>(local_search.steps()) * (kStep + kDevice * problem_.devices()) /
           kNanoseconds;
  }

  /// The plan before, with new tables and what is lost nowhere yet.
  void take_up() {
    std::vector<std::vector<KeptShard>> of_table(index(problem_.tables()));
    for (const KeptShard& shard : kept_) {
      if (shard.table < 0 || shard.table >= problem_.tables() ||
          shard.device >= problem_.devices() || shard.device < KeptShard::kLost ||
          shard.bytes < 0) {
        throw std::invalid_argument("kept: a shard of table " + std::to_string(shard.table) +
                                    " on device " + std::to_string(shard.device) +
                                    " is none of the problem's");
      }
      of_table[index(shard.table)].push_back(shard);
    }
    for (int table = 0; table < problem_.tables(); ++table) {
      if (of_table[index(table)].empty()) {
        plan_.shards.push_back({.kind = table, .device = kNowhere});
        continue;
      }
      std::vector<Leaf> leaves;
      for (const KeptShard& shard : of_table[index(table)]) {
        leaves.push_back({shard.column_offset, shard.width, 0});
      }
      plan_.splits += static_cast<int>(split(table, leaves, nullptr).size());
      for (const KeptShard& shard : of_table[index(table)]) {
        Kind kind = table;
        while (catalog_.width(kind) > shard.width) {
          catalog_.add_pieces({&kind, 1});
          kind = catalog_.piece(kind);
        }
        plan_.shards.push_back(
            {.kind = kind, .device = shard.device, .origin = static_cast<int>(origins_.size())});
        origins_.push_back({.device = shard.device,
                            .bytes_per_column = static_cast<double>(shard.bytes) /
                                                static_cast<double>(shard.width)});
        offsets_.push_back(shard.column_offset);
      }
    }
    for (const PlacedShard& shard : plan_.shards) {
      if (shard.device != kNowhere) {
        bytes_[index(shard.device)] += catalog_.bytes(shard.kind);
        held_[index(shard.device)].push_back(shard.kind);
      }
    }
  }

  /// Each where it makes the device compute least, the dearest first; split where none has room.
  bool place_the_others() {
    std::vector<PlacedShard> waiting;
    std::erase_if(plan_.shards, [&](const PlacedShard& shard) {
      if (shard.device == kNowhere) {
        waiting.push_back(shard);
      }
      return shard.device == kNowhere;
    });
    const auto cheaper = [this](const PlacedShard& a, const PlacedShard& b) {
      return catalog_.single_cost(a.kind) < catalog_.single_cost(b.kind);
    };
    std::ranges::stable_sort(waiting, cheaper);
    std::vector<float> compute;
    compute.reserve(held_.size());
    for (const std::vector<Kind>& kinds : held_) {
      compute.push_back(device_compute(networks_.set(), catalog_, kinds).cost);
    }
    while (!waiting.empty()) {
      interrupt_.check();
      PlacedShard shard = waiting.back();
      waiting.pop_back();
      const std::int64_t pinned = problem_.pinned(catalog_.table(shard.kind));
      for (int device = 0; device < problem_.devices(); ++device) {
        const bool fits =
            bytes_[index(device)] + catalog_.bytes(shard.kind) <= problem_.memory_bytes(device);
        const bool is_allowed = pinned == Problem::kAnyDevice || pinned == device;
        if (fits && is_allowed &&
            (shard.device == kNowhere || compute[index(device)] < compute[index(shard.device)])) {
          shard.device = device;
        }
      }
      if (shard.device != kNowhere) {
        plan_.shards.push_back(shard);
        bytes_[index(shard.device)] += catalog_.bytes(shard.kind);
        std::vector<Kind>& kinds = held_[index(shard.device)];
        kinds.push_back(shard.kind);
        compute[index(shard.device)] = device_compute(networks_.set(), catalog_, kinds).cost;
        continue;
      }
      const std::int64_t pieces = catalog_.pieces(shard.kind);
      if (pieces == 1 || plan_.splits >= options_.max_splits) {
        return false;
      }
      ++plan_.splits;
      catalog_.add_pieces({&shard.kind, 1});
      shard.kind = catalog_.piece(shard.kind);
      waiting.insert(std::ranges::upper_bound(waiting, shard, cheaper),
                     static_cast<std::size_t>(pieces), shard);
    }
    return true;
  }

  double moved() const {
    double sum = 0.0;
    for (const PlacedShard& shard : plan_.shards) {
      if (shard.origin != PlacedShard::kNoOrigin) {
        const Origin& origin = origins_[index(shard.origin)];
        if (origin.device != Origin::kNone && origin.device != shard.device) {
          sum += origin.bytes_per_column * static_cast<double>(catalog_.width(shard.kind));
        }
      }
    }
    return sum;
  }

  /// Takes shards off devices that hold more than they may, those that move fewest bytes first.
  bool make_room() {
    while (true) {
      interrupt_.check();
      int full = kNowhere;
      for (int device = 0; device < problem_.devices() && full == kNowhere; ++device) {
        full = bytes_[index(device)] > problem_.memory_bytes(device) ? device : full;
      }
      if (full == kNowhere) {
        return moved() <= options_.most_moved;
      }
      PlacedShard* best = nullptr;
      int to = kNowhere;
      const std::int64_t needed = bytes_[index(full)] - problem_.memory_bytes(full);
      const auto is_enough = [&](const PlacedShard& shard) {
        return catalog_.bytes(shard.kind) >= needed;
      };
      for (PlacedShard& shard : plan_.shards) {
        if (shard.device != full ||
            problem_.pinned(catalog_.table(shard.kind)) != Problem::kAnyDevice) {
          continue;
        }
        for (int device = 0; device < problem_.devices(); ++device) {
          if (device == full ||
              bytes_[index(device)] + catalog_.bytes(shard.kind) > problem_.memory_bytes(device)) {
            continue;
          }
          // The smallest that is enough, or else the largest.
          const bool is_better =
              best == nullptr || (is_enough(shard) && !is_enough(*best)) ||
              (is_enough(shard) == is_enough(*best) &&
               (is_enough(shard) ? catalog_.bytes(shard.kind) < catalog_.bytes(best->kind)
                                 : catalog_.bytes(shard.kind) > catalog_.bytes(best->kind)));
          if (is_better) {
            best = &shard;
            to = device;
          }
        }
      }
      if (best == nullptr) {
        return false;
      }
      bytes_[index(full)] -= catalog_.bytes(best->kind);
      bytes_[index(to)] += catalog_.bytes(best->kind);
      best->device = to;
    }
  }

  /// Splits that lead to the plan with every kept column where it was in its table.
  SplitsAndPlacement splits() {
    std::vector<std::vector<PlacedShard>> of_origin(origins_.size());
    std::vector<std::vector<PlacedShard>> new_ones(index(problem_.tables()));
    std::vector<std::vector<Leaf>> leaves(index(problem_.tables()));
    for (const PlacedShard& shard : plan_.shards) {
      (shard.origin == PlacedShard::kNoOrigin ? new_ones[index(catalog_.table(shard.kind))]
                                              : of_origin[index(shard.origin)])
          .push_back(shard);
    }
    // The widest first, so that each begins where splits can cut.
    const auto lay = [&](std::vector<PlacedShard>& shards, std::int64_t offset) {
      std::ranges::stable_sort(shards, std::greater<>{}, [this](const PlacedShard& shard) {
        return catalog_.width(shard.kind);
      });
      for (const PlacedShard& shard : shards) {
        const std::int64_t width = catalog_.width(shard.kind);
        leaves[index(catalog_.table(shard.kind))].push_back({offset, width, shard.device});
        offset += width;
      }
    };
    for (std::size_t origin = 0; origin < origins_.size(); ++origin) {
      lay(of_origin[origin], offsets_[origin]);
    }
    for (std::vector<PlacedShard>& shards : new_ones) {
      lay(shards, 0);
    }
    SplitsAndPlacement found;
    found.placement.resize(index(problem_.devices()));
    next_ = problem_.tables();
    for (int table = 0; table < problem_.tables(); ++table) {
      const std::vector<std::int64_t> more = split(table, leaves[index(table)], &found.placement);
      found.column_splits.insert(found.column_splits.end(), more.begin(), more.end());
    }
    for (std::vector<std::int64_t>& on_device : found.placement) {
      std::ranges::sort(on_device);
    }
    return found;
  }

  /// Splits of a table that lead to these shards, which are put into `placement` if there is one.
  std::vector<std::int64_t> split(int table, const std::vector<Leaf>& leaves,
                                  Placement* placement) {
    std::vector<std::int64_t> found;
    std::size_t used = 0;
    const std::function<void(std::int64_t, std::int64_t, std::int64_t)> cut =
        [&](std::int64_t number, std::int64_t offset, std::int64_t width) {
          const auto leaf = std::ranges::find_if(leaves, [&](const Leaf& other) {
            return other.column_offset == offset && other.width == width;
          });
          if (leaf != leaves.end()) {
            ++used;
            if (placement != nullptr) {
              (*placement)[index(leaf->device)].push_back(number);
            }
            return;
          }
          const std::int64_t pieces = problem_.pieces(table, width);
          if (pieces == 1) {
            throw std::invalid_argument("kept: the shards of table " + std::to_string(table) +
                                        " are not its columns, or not made by splits that it may "
                                        "have");
          }
          found.push_back(number);
          std::vector<std::int64_t> numbers = {number};
          for (std::int64_t piece = 1; piece < pieces; ++piece) {
            numbers.push_back(next_++);
          }
          for (std::size_t piece = 0; piece < numbers.size(); ++piece) {
            cut(numbers[piece], offset + static_cast<std::int64_t>(piece) * (width / pieces),
                width / pieces);
          }
        };
    cut(table, 0, problem_.table_width(table));
    if (used != leaves.size()) {
      throw std::invalid_argument("kept: the shards of table " + std::to_string(table) +
                                  " have columns in common");
    }
    return found;
  }

  const CostNetworks& networks_;
  const Problem& problem_;
  const std::vector<KeptShard>& kept_;
  const ReplanOptions& options_;
  Interrupt& interrupt_;
  Workers workers_;
  ShardCatalog catalog_;
  SplitPlan plan_;
  std::vector<Origin> origins_;        // of shards that were kept
  std::vector<std::int64_t> offsets_;  // of the columns of each origin
  std::vector<std::int64_t> bytes_;    // on each device
  std::vector<std::vector<Kind>> held_;
  std::int64_t next_ = 0;  // number of the next shard that a split appends
};

}  // namespace

std::optional<Replanned> replan(const CostNetworks& networks, const Problem& problem,
                                const std::vector<KeptShard>& kept, const ReplanOptions& options,
                                Interrupt& interrupt) {
  if (!(options.most_moved >= 0.0)) {
    throw std::invalid_argument("most_moved must be at least 0");
  }
  if (options.max_splits < 0 || options.evaluations.value_or(0) < 0) {
    throw std::invalid_argument("max_splits and evaluations must be at least 0");
  }
  return Replan(networks, problem, kept, options, interrupt).run();
}

}  // namespace neuroshard
