"""Models of TorchRec on the meta device, planners for them, and what TorchRec itself says of a plan.

Unless a test asks for something else, plans are for GPUs, by the shipped simulated cost models, which hold
for 4096 to 131072 samples a step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import (
    CustomTopologyData,
    ParameterConstraints,
    Shard,
    ShardingOption,
    Storage,
    Topology,
)
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ParameterSharding, ShardingPlan
from torchrec.modules.embedding_configs import (
    DataType,
    EmbeddingBagConfig,
    EmbeddingConfig,
    PoolingType,
)
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from neuroshard_fast import CostModels
from neuroshard_fast.torchrec import NeuroShardPlanner, TorchRecPlan

META = torch.device("meta")
MIB = 2**20
BATCH_SIZE = 2048
"""Samples of a rank."""

Constraints = dict[str, ParameterConstraints]


# ---- models ----


def bag(
    name: str, *features: str, rows: int = 1000, dim: int = 16, **fields: Any
) -> EmbeddingBagConfig:
    """A pooled table; its one feature has its name unless others are given."""
    return EmbeddingBagConfig(
        name=name,
        num_embeddings=rows,
        embedding_dim=dim,
        feature_names=list(features) or [name],
        **fields,
    )


def sequence(
    name: str, *features: str, rows: int = 1000, dim: int = 16, **fields: Any
) -> EmbeddingConfig:
    """An unpooled table."""
    return EmbeddingConfig(
        name=name,
        num_embeddings=rows,
        embedding_dim=dim,
        feature_names=list(features) or [name],
        **fields,
    )


def bags(*tables: EmbeddingBagConfig, weighted: bool = False) -> nn.Module:
    """An EmbeddingBagCollection."""
    found: nn.Module = EmbeddingBagCollection(
        tables=list(tables), is_weighted=weighted, device=META
    )
    return found


def sequences(*tables: EmbeddingConfig) -> nn.Module:
    """An EmbeddingCollection."""
    found: nn.Module = EmbeddingCollection(tables=list(tables), device=META)
    return found


def parts(**modules: nn.Module) -> nn.Module:
    """Modules side by side, each under its name."""
    return nn.ModuleDict(modules)


def one_table(rows: int = 100_000, dim: int = 64, **fields: Any) -> nn.Module:
    """A model of one pooled table, ``bags.t``."""
    return parts(bags=bags(bag("t", rows=rows, dim=dim, **fields)))


def table_bytes(rows: int, columns: int, ranks: int, state: int = 0) -> int:
    """Memory of a pooled fp32 shard, looked up once by each sample; ``state`` of its optimizer."""
    return rows * columns * 4 + state + ranks * BATCH_SIZE * (columns * 4 + 8)


# ---- optimizers ----


@dataclass(frozen=True)
class Optimizer:
    """An optimizer by its two names, and bytes of its state of a shard of so many rows and columns."""

    fused: EmbOptimType
    attached: type[torch.optim.Optimizer]
    state: Callable[[int, int], int]


OPTIMIZERS = {
    "sgd": Optimizer(EmbOptimType.EXACT_SGD, torch.optim.SGD, lambda rows, columns: 0),
    "rowwise_adagrad": Optimizer(
        EmbOptimType.EXACT_ROWWISE_ADAGRAD, RowWiseAdagrad, lambda rows, columns: 4 * rows
    ),
    "adam": Optimizer(
        EmbOptimType.ADAM, torch.optim.Adam, lambda rows, columns: 8 * rows * columns
    ),
}


def sharders_with(optimizer: EmbOptimType) -> list[Any]:
    """Sharders that fuse it."""
    fused = {"optimizer": optimizer, "learning_rate": 0.1}
    return [
        EmbeddingBagCollectionSharder(fused_params=dict(fused)),
        EmbeddingCollectionSharder(fused_params=dict(fused)),
    ]


def attach(optimizer: type[torch.optim.Optimizer], model: nn.Module) -> nn.Module:
    """The model, with an optimizer that is applied in the backward pass attached to its parameters."""
    with warnings.catch_warnings():
        # Importing it compiles scripts, which torch advises against.
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim.apply_optimizer_in_backward import (
            _apply_optimizer_in_backward,
        )
    _apply_optimizer_in_backward(optimizer, model.parameters(), {"lr": 0.1})
    return model


# ---- planning ----


def topology(
    ranks: int = 2,
    memory: int | Sequence[int] | None = None,
    *,
    device: str = "cuda",
    local: int | None = None,
    host_memory: int | None = None,
) -> Topology:
    """``ranks`` devices, ``local`` of them on a host.

    memory: bytes of each rank, HBM of GPUs or else DDR; a list where they differ.
    host_memory: DDR of a GPU's rank.
    """
    kind = "hbm_cap" if device == "cuda" else "ddr_cap"
    options: dict[str, Any] = {}
    if isinstance(memory, int):
        options[kind] = memory
    elif memory is not None:
        options["custom_topology_data"] = CustomTopologyData({kind: list(memory)}, ranks)
    if host_memory is not None:
        options["ddr_cap"] = host_memory
    return Topology(world_size=ranks, compute_device=device, local_world_size=local, **options)


@cache
def cost_models(name: str) -> CostModels:
    """Shipped cost models, loaded once for all tests."""
    return CostModels.load(name)


def planner(devices: Topology, **options: Any) -> NeuroShardPlanner:
    """A planner that reserves nothing, so that caps are those of the topology."""
    defaults: dict[str, Any] = {
        "batch_size": BATCH_SIZE if devices.compute_device == "cuda" else 256,
        "storage_reservation": FixedPercentageStorageReservation(percentage=0.0),
    }
    if devices.compute_device == "cuda":
        defaults["cost_models"] = cost_models("h100-sim")
    return NeuroShardPlanner(devices, **{**defaults, **options})


def described(
    of: NeuroShardPlanner, model: nn.Module, sharders: list[Any] | None = None
) -> TorchRecPlan:
    """The plan with its costs and memory."""
    of.plan(model, sharders)
    assert of.last_plan is not None
    return of.last_plan


def widths(plan: TorchRecPlan, table: str) -> list[int]:
    """Columns of each shard of a table."""
    return [shard.columns for found in plan.tables if found.fqn == table for shard in found.shards]


def types_of(plan: TorchRecPlan) -> dict[str, str]:
    """Sharding type of each table."""
    return {table.fqn: table.sharding_type for table in plan.tables}


# ---- what TorchRec says ----


def torchrec_options(
    model: nn.Module,
    devices: Topology,
    sharders: list[Any] | None = None,
    constraints: Constraints | None = None,
    batch_size: int = BATCH_SIZE,
) -> tuple[EmbeddingEnumerator, list[ShardingOption]]:
    """All that TorchRec's enumerator would propose."""
    enumerator = EmbeddingEnumerator(
        devices,
        batch_size,
        constraints,
        EmbeddingStorageEstimator(topology=devices, constraints=constraints),
    )
    with warnings.catch_warnings():
        # It says of some dims that it does not cut them.
        warnings.simplefilter("ignore", UserWarning)
        options = enumerator.enumerate(
            model, get_default_sharders() if sharders is None else sharders
        )
    return enumerator, options


def torchrec_storage(
    plan: ShardingPlan,
    model: nn.Module,
    devices: Topology,
    sharders: list[Any] | None = None,
    constraints: Constraints | None = None,
    batch_size: int = BATCH_SIZE,
) -> list[Storage]:
    """Memory of each rank by TorchRec's EmbeddingStorageEstimator, for the shards of ``plan``."""
    enumerator, options = torchrec_options(model, devices, sharders, constraints, batch_size)
    by_choice = {(o.path, o.name, o.sharding_type, o.compute_kernel): o for o in options}
    chosen = []
    for path, name, sharding in shardings(plan):
        option = by_choice[path, name, sharding.sharding_type, sharding.compute_kernel]
        if sharding.sharding_spec is not None:
            option.shards = [
                Shard(
                    size=list(shard.shard_sizes),
                    offset=list(shard.shard_offsets),
                    rank=shard.placement.rank(),
                )
                for shard in sharding.sharding_spec.shards
            ]
        else:
            for rank, shard in enumerate(option.shards):
                shard.rank = rank
        chosen.append(option)
    enumerator.populate_estimates(chosen)
    totals = [Storage(0, 0) for _ in range(devices.world_size)]
    for option in chosen:
        for shard in option.shards:
            totals[shard.rank] += shard.storage
    return totals


def shardings(plan: ShardingPlan) -> list[tuple[str, str, ParameterSharding]]:
    """Path of the module, name and sharding of every table."""
    found = []
    for path, module_plan in plan.plan.items():
        tables: dict[str, Any] = dict(module_plan)
        found += [(path, name, sharding) for name, sharding in tables.items()]
    return found


# ---- checks ----


def check_sound(
    plan: ShardingPlan, model: nn.Module, devices: Topology, sharders: list[Any] | None = None
) -> None:
    """Every table that TorchRec's enumerator finds is in the plan once, as it can be trained."""
    options = torchrec_options(model, devices, sharders)[1]
    shapes = {(option.path, option.name): option.tensor.shape for option in options}
    found = {(path, name): sharding for path, name, sharding in shardings(plan)}
    assert found.keys() == shapes.keys()
    for key, sharding in found.items():
        rows, dim = shapes[key]
        _check_shards(sharding, rows, dim, devices)
    modules = {option.path: option.module[1] for option in options}
    for path, module in modules.items():
        if isinstance(module, EmbeddingCollection):
            of_columns = {
                shard.shard_sizes[1]
                for other, _, sharding in shardings(plan)
                if other == path and sharding.sharding_type == "column_wise"
                for shard in sharding.sharding_spec.shards
            }
            assert len(of_columns) <= 1, path


def _check_shards(sharding: ParameterSharding, rows: int, dim: int, devices: Topology) -> None:
    ranks = devices.world_size
    if sharding.sharding_type == "data_parallel":
        assert sharding.sharding_spec is None
        assert sharding.ranks == list(range(ranks))
        return
    shards = sharding.sharding_spec.shards
    assert [shard.placement.rank() for shard in shards] == sharding.ranks
    assert set(sharding.ranks) <= set(range(ranks))
    for shard in shards:
        device = "cpu"
        if devices.compute_device == "cuda":
            device = f"cuda:{shard.placement.rank() % devices.local_world_size}"
        assert str(shard.placement.device()) == device
    if sharding.sharding_type in ("row_wise", "table_row_wise"):
        end = 0
        for shard in shards:
            if shard.shard_sizes[0]:
                assert shard.shard_offsets == [end, 0]
                assert shard.shard_sizes[1] == dim
                end += shard.shard_sizes[0]
        assert end == rows
        return
    end = 0
    widths_on: dict[int, set[int]] = {}
    for shard in shards:
        width = shard.shard_sizes[1]
        assert shard.shard_offsets == [0, end]
        assert shard.shard_sizes[0] == rows
        assert width > 0
        assert width % 4 == 0
        widths_on.setdefault(shard.placement.rank(), set()).add(width)
        end += width
    assert end == dim
    assert all(len(found) == 1 for found in widths_on.values())
    assert sharding.sharding_type != "table_wise" or len(shards) == 1


def check_loads(plan: TorchRecPlan) -> None:
    """Loads of ranks are those of their shards, and keep the caps."""
    assert [load.rank for load in plan.ranks] == list(range(plan.world_size))
    for load in plan.ranks:
        mine = [s for table in plan.tables for s in table.shards if s.rank == load.rank]
        assert load.num_shards == len(mine)
        for field_name in ("estimated_bytes", "training_bytes", "host_bytes"):
            assert getattr(load, field_name) == sum(getattr(shard, field_name) for shard in mine)
        assert max(load.estimated_bytes, load.training_bytes) <= load.cap_bytes


# ---- random models ----

SEEDS = range(16)


@dataclass(frozen=True)
class Case:
    """A seeded random model, and what it is planned with."""

    seed: int
    model: nn.Module
    ranks: int
    sharders: list[Any] | None
    constraints: Constraints = field(default_factory=dict)

    def topology(self, memory: int | None = None) -> Topology:
        """Two hosts, or one, of four GPUs."""
        return topology(self.ranks, memory, local=4)

    def planner(self, memory: int | None = None) -> NeuroShardPlanner:
        """For ranks with so much memory."""
        return planner(self.topology(memory), constraints=self.constraints)


def draw_case(seed: int) -> Case:
    """One to three collections of every kind, some tables constrained, an optimizer or none."""
    generator = np.random.default_rng(seed)
    modules: dict[str, nn.Module] = {}
    constraints: Constraints = {}
    for number in range(int(generator.integers(1, 4))):
        kind = ("bags", "weighted", "sequences")[int(generator.integers(3))]
        module = _draw_collection(generator, f"{kind}{number}", kind, constraints)
        modules[f"{kind}{number}"] = parts(inner=module) if generator.random() < 0.5 else module
    tables = nn.ModuleDict(modules)
    optimizer = OPTIMIZERS[("adam", "rowwise_adagrad")[seed // 4 % 2]]
    if seed % 4 == 2:
        attach(optimizer.attached, tables)
    return Case(
        seed=seed,
        model=parts(tables=tables, dense=nn.Linear(16, 16, device=META)),
        ranks=int(generator.choice([4, 8])),
        sharders=sharders_with(optimizer.fused) if seed % 4 == 3 else None,
        constraints=constraints,
    )


def _draw_collection(
    generator: np.random.Generator, prefix: str, kind: str, constraints: Constraints
) -> nn.Module:
    common_dim = 4 * int(generator.integers(1, 33))
    configs: list[Any] = []
    for index in range(int(generator.integers(1, 7))):
        name = f"{prefix}_t{index}"
        features = [f"{name}.{k}" for k in range(int(generator.integers(1, 4)))]
        if configs and kind != "sequences" and generator.random() < 0.3:
            features[0] = configs[-1].feature_names[0]  # which looks both tables up
        if generator.random() < 0.7:
            constraints[name] = _draw_constraints(generator, kind, len(features))
        fields: dict[str, Any] = {
            "rows": int(10 ** generator.uniform(1, 5.5)),
            "dim": common_dim if kind == "sequences" else 4 * int(generator.integers(1, 33)),
            "data_type": DataType.FP16 if generator.random() < 0.3 else DataType.FP32,
        }
        if kind == "sequences":
            configs.append(sequence(name, *features, **fields))
        else:
            # TorchRec gets tables wrong beside one that is mean-pooled and cut by rows.
            by_row = name in constraints and "row" in str(constraints[name].sharding_types)
            mean = kind == "bags" and not by_row and generator.random() < 0.3
            pooling = PoolingType.MEAN if mean else PoolingType.SUM
            configs.append(bag(name, *features, pooling=pooling, **fields))
    if kind == "sequences":
        return sequences(*configs)
    return bags(*configs, weighted=kind == "weighted")


def _draw_constraints(
    generator: np.random.Generator, kind: str, features: int
) -> ParameterConstraints:
    types = [None, None, None, "column_wise", "row_wise", "data_parallel"]
    if kind != "sequences":
        types.append("table_row_wise")
    forced = types[int(generator.integers(len(types)))]
    factors = generator.uniform(0.2, 30.0, features).tolist()
    return ParameterConstraints(
        sharding_types=[forced] if forced else None,
        pooling_factors=factors,
        num_poolings=[2.0] * features if generator.random() < 0.2 else None,
        is_weighted=kind == "weighted",
    )
