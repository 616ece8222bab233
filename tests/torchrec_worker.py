"""One of several gloo processes that train sharded models beside the same models unsharded.

    python torchrec_worker.py --rank 0 --world-size 2 --store FILE --seeds 0 1 2
    python torchrec_worker.py --rank 0 --world-size 2 --store FILE --without-training

Each rank has its part of every batch; the unsharded model has all of it, on every rank. The last line printed
is JSON: what was found of each seed, or else the error of planning that fails on rank 0, and statistics that
ranks gather; with --refusals the errors of planning where ranks are given different things.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from datetime import timedelta
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.optim.apply_optimizer_in_backward import (
    _apply_optimizer_in_backward as apply_optimizer_in_backward,
)
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import (
    CustomTopologyData,
    ParameterConstraints,
    Topology,
)
from torchrec.distributed.types import ShardingPlan
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from neuroshard_fast.torchrec import NeuroShardPlanner, TableStats
from torchrec_cases import bag, bags, parts
from torchrec_models import (
    GATHERED_BATCHES,
    GATHERED_SEED,
    SAMPLES,
    Batch,
    Model,
    RandomModel,
    batches,
    draw,
)

STEPS = 3
PLANNED_SAMPLES = 128
"""Samples of a rank that are planned for; the cost models know no batches as small as those trained on."""

_HEAD_RATE = 0.1  # over the width of the head: steps that overshoot would magnify rounding
_EPS = 1e-3  # of Adagrad: so large that the step of a tiny gradient does not hang on its rounding
_CLASSES: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "rowwise_adagrad": RowWiseAdagrad,
}
_FUSED = {
    "sgd": EmbOptimType.EXACT_SGD,
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
}
_OPTIONS: dict[str, dict[str, float]] = {
    "sgd": {"lr": 0.5},
    "adagrad": {"lr": 0.05, "eps": _EPS},
    "rowwise_adagrad": {"lr": 0.05, "eps": _EPS},
}


class BagSharder(EmbeddingBagCollectionSharder):  # type: ignore[misc]  # TorchRec has no types
    """Offers rows on CPUs too, where TorchRec's sharder can cut by them, but does not say so."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return [*super().sharding_types(compute_device_type), "row_wise"]


def sharders(model: Model) -> list[Any]:
    """With the optimizer, unless that is attached to the parameters."""
    options = dict(_OPTIONS[model.optimizer])
    fused: dict[str, Any] | None = None
    if not model.in_backward:
        fused = {
            "optimizer": _FUSED[model.optimizer],
            "learning_rate": options.pop("lr"),
            **options,
        }
    return [BagSharder(fused_params=fused), EmbeddingCollectionSharder(fused_params=fused)]


def constraints(model: Model) -> dict[str, ParameterConstraints]:
    """Of every table: bags are of two rows, and some sharding types are forced."""
    return {
        table.name: ParameterConstraints(
            sharding_types=[table.forced] if table.forced else None,
            min_partition=4,
            pooling_factors=[2.0] * len(table.features),
            is_weighted=collection.is_weighted,
        )
        for collection, table in model.tables
    }


def planner(model: Model, world_size: int) -> NeuroShardPlanner:
    """With the memory that the model is to be squeezed into."""
    caps = model.memory_caps(world_size)
    return NeuroShardPlanner(
        topology=Topology(
            world_size=world_size,
            compute_device="cpu",
            custom_topology_data=(
                CustomTopologyData({"ddr_cap": caps}, world_size) if caps else None
            ),
        ),
        batch_size=PLANNED_SAMPLES,
        storage_reservation=FixedPercentageStorageReservation(percentage=0.0),
        constraints=constraints(model),
        keep_row_statistics=model.optimizer == "rowwise_adagrad",
    )


def head_optimizer(head: nn.Linear) -> torch.optim.Optimizer:
    return torch.optim.SGD(head.parameters(), lr=_HEAD_RATE / head.in_features)


def table_parameters(module: nn.Module) -> list[nn.Parameter]:
    return [p for name, p in module.named_parameters() if not name.startswith("head.")]


class Unsharded:
    """The whole model, trained on whole batches."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.module = RandomModel(model)
        tables: Any = _CLASSES[model.optimizer]
        self._optimizers = [
            tables(table_parameters(self.module), **_OPTIONS[model.optimizer]),
            head_optimizer(self.module.head),
        ]

    def outputs(self, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            outputs: dict[str, Tensor] = self.module(*batch.inputs(self.model))[1]
        return outputs

    def step(self, batch: Batch) -> None:
        predicted, _ = self.module(*batch.inputs(self.model))
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        torch.autograd.backward(nn.functional.mse_loss(predicted, batch.labels))
        for optimizer in self._optimizers:
            optimizer.step()


class Sharded:
    """The same model with its tables spread over the ranks, trained on a part of each batch."""

    def __init__(self, model: Model) -> None:
        self.model = model
        module = RandomModel(model)
        weights = {name: value.clone() for name, value in module.state_dict().items()}
        if model.in_backward:
            apply_optimizer_in_backward(
                _CLASSES[model.optimizer],
                table_parameters(module),
                dict(_OPTIONS[model.optimizer]),
            )
        own = sharders(model)
        self.plan: ShardingPlan = planner(model, dist.get_world_size()).collective_plan(
            module, own, dist.group.WORLD
        )
        self.module = DistributedModelParallel(
            module, plan=self.plan, sharders=own, device=torch.device("cpu")
        )
        with torch.no_grad():
            for part, whole in self.parts(weights):
                part.copy_(whole)
        self._head = head_optimizer(self.module.module.head)

    def parts(self, weights: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Every tensor that this rank holds, and the part of the whole ``weights`` that it stands for."""
        found = []
        for name, value in self.module.state_dict().items():
            if not isinstance(value, ShardedTensor):
                found.append((value, weights[name]))
                continue
            for shard in value.local_shards():
                row, column = shard.metadata.shard_offsets
                rows, columns = shard.metadata.shard_sizes
                found.append(
                    (shard.tensor, weights[name][row : row + rows, column : column + columns])
                )
        return found

    def table_weights(self) -> int:
        """How many numbers of tables this rank holds."""
        return sum(
            shard.tensor.numel()
            for value in self.module.state_dict().values()
            if isinstance(value, ShardedTensor)
            for shard in value.local_shards()
        )

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """Outputs, before the step."""
        self._head.zero_grad()
        predicted, outputs = self.module(*batch.inputs(self.model))
        torch.autograd.backward(nn.functional.mse_loss(predicted, batch.labels))
        self._head.step()
        return {name: output.detach().clone() for name, output in outputs.items()}


def difference(value: Tensor, expected: Tensor) -> float:
    """The largest, relative to numbers above 1; infinite where shapes differ, or for what is no number."""
    if value.shape != expected.shape:
        return math.inf
    if not value.numel():
        return 0.0
    largest = float(((value - expected).abs() / expected.abs().clamp(min=1.0)).max())
    return math.inf if math.isnan(largest) else largest


def train(seed: int) -> dict[str, Any]:
    """Train the model of a seed, sharded and not, and say how far they are apart."""
    model, rank, world_size = draw(seed), dist.get_rank(), dist.get_world_size()
    unsharded, sharded = Unsharded(model), Sharded(model)
    before = {name: value.clone() for name, value in unsharded.module.state_dict().items()}
    output_difference, outputs = 0.0, 0
    for batch in batches(model, STEPS, world_size * SAMPLES):
        own = batch.part(rank * SAMPLES, (rank + 1) * SAMPLES)
        expected = unsharded.outputs(own)
        found = sharded.step(own)
        unsharded.step(batch)
        if found.keys() != expected.keys():
            raise AssertionError(f"seed {seed}: outputs {sorted(found)}, not {sorted(expected)}")
        outputs += sum(value.numel() for value in found.values())
        output_difference = max(
            output_difference, *(difference(found[name], expected[name]) for name in expected)
        )
    after = unsharded.module.state_dict()
    parts = sharded.parts(after)
    return {
        "seed": seed,
        "tables": tables_of(sharded.plan),
        "output_difference": output_difference,
        "outputs": outputs,
        "weight_difference": max(difference(part, whole) for part, whole in parts),
        "weights": sharded.table_weights(),
        "weight_change": max(
            difference(after[name], before[name]) for name in before if not name.startswith("head.")
        ),
    }


def tables_of(plan: ShardingPlan) -> dict[str, dict[str, Any]]:
    """Of each table its sharding type, and rank and size of its shards."""
    found = {}
    for tables in plan.plan.values():
        for name, sharding in tables.items():
            shards = [] if sharding.sharding_spec is None else sharding.sharding_spec.shards
            found[name] = {
                "type": sharding.sharding_type,
                "shards": [[shard.placement.rank(), *shard.shard_sizes] for shard in shards],
            }
    return found


def fail() -> dict[str, Any]:
    """Plan for tiny devices, and say what comes of it."""
    model = draw(5)
    own = NeuroShardPlanner(
        topology=Topology(world_size=dist.get_world_size(), compute_device="cpu", ddr_cap=1000),
        batch_size=PLANNED_SAMPLES,
        storage_reservation=FixedPercentageStorageReservation(percentage=0.0),
    )
    return outcome(own, RandomModel(model), sharders(model))


class Interrupted(FixedPercentageStorageReservation):  # type: ignore[misc]  # TorchRec has no types
    """Of a user who loses patience."""

    def __init__(self) -> None:
        super().__init__(percentage=0.0)

    def reserve(self, **given: Any) -> Topology:
        raise KeyboardInterrupt


def small(
    *,
    rows: int = 1000,
    dim: int = 16,
    more: bool = False,
    ranks: int | None = None,
    memory: int = 2**30,
    **options: Any,
) -> dict[str, Any]:
    """What comes of planning a small model for CPUs."""
    devices = Topology(
        world_size=ranks or dist.get_world_size(), compute_device="cpu", ddr_cap=memory
    )
    tables = [bag("t", rows=rows, dim=dim), *([bag("u")] if more else [])]
    own = NeuroShardPlanner(devices, **{"batch_size": PLANNED_SAMPLES, **options})
    return outcome(own, parts(bags=bags(*tables)), None)


UNLIKE: dict[str, dict[str, Any]] = {
    "rows": {"rows": 2000},
    "tables": {"more": True},
    "memory": {"memory": 2**29},
    "ranks": {"ranks": 4},
    "batch_size": {"batch_size": 2 * PLANNED_SAMPLES},
    "constraints": {"constraints": {"t": ParameterConstraints(pooling_factors=[3.0])}},
    "excluded": {"constraints": {"t": ParameterConstraints(device_group="cuda")}},
    "not supported": {"dim": 6},
    "wrong constraints": {"constraints": {"t": ParameterConstraints(pooling_factors=[math.nan])}},
}
"""What rank 1 is given otherwise than the other ranks."""


def refusals() -> dict[str, dict[str, Any]]:
    """What comes of each of ``UNLIKE``, then of an interrupt on rank 0, then of nothing unlike at all."""
    rank = dist.get_rank()
    found = {name: small(**(options if rank == 1 else {})) for name, options in UNLIKE.items()}
    found["interrupt"] = small(**({"storage_reservation": Interrupted()} if rank == 0 else {}))
    found["alike"] = small()
    return found


def outcome(own: NeuroShardPlanner, module: nn.Module, given: list[Any] | None) -> dict[str, Any]:
    """The error of planning together, and how long it took."""
    dist.barrier()
    started = time.monotonic()
    try:
        own.collective_plan(module, given, dist.group.WORLD)
    except BaseException as error:
        return {
            "type": f"{type(error).__module__}.{type(error).__qualname__}",
            "kind": str(getattr(error, "error_type", "")),
            "message": str(error),
            "seconds": time.monotonic() - started,
        }
    return {"type": "", "kind": "", "message": "", "seconds": time.monotonic() - started}


def gather() -> Any:
    """Statistics of all ranks, each of which has seen other batches."""
    model = draw(GATHERED_SEED)
    stats = TableStats(RandomModel(model), share=1.0, batch_size=2 * SAMPLES)
    for number, batch in enumerate(batches(model, GATHERED_BATCHES, SAMPLES)):
        if number % dist.get_world_size() == dist.get_rank():
            stats.observe(*batch.inputs(model))
    return msgspec.to_builtins(stats.gather().table_set())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument("--store", required=True, help="file that the processes meet in")
    parser.add_argument("--seeds", type=int, nargs="*", default=[])
    parser.add_argument("--without-training", action="store_true")
    parser.add_argument("--refusals", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{args.store}",
        rank=args.rank,
        world_size=args.world_size,
        timeout=timedelta(minutes=2),
    )
    result: dict[str, Any] = {"models": [train(seed) for seed in args.seeds]}
    if args.without_training:
        result = {"failure": fail(), "gathered": gather()}
    if args.refusals:
        result = {"refusals": refusals()}
    dist.destroy_process_group()
    print(json.dumps({"rank": args.rank, **result}), flush=True)


if __name__ == "__main__":
    main()
