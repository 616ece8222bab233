"""Plans of TorchRec models for people to look at."""

from __future__ import annotations

from tabulate import tabulate

from neuroshard_fast.report import provenance
from neuroshard_fast.torchrec.notes import listed
from neuroshard_fast.torchrec.plan import RankLoad, TorchRecPlan, describe_layout
from neuroshard_fast.units import format_bytes


def format_torchrec_plan(plan: TorchRecPlan, *, tables: bool = False) -> str:
    """The load of each rank as a table, with what there is to know of the plan above it.

    tables: also list how each table is sharded.
    """
    has_host = any(load.host_bytes for load in plan.ranks)
    has_high = any(load.high_ms is not None for load in plan.ranks)
    headers = [
        *(
            "rank",
            "shards",
            f"estimated {plan.memory_kind}",
            f"training {plan.memory_kind}",
            "of cap",
        ),
        *(("host DDR",) if has_host else ()),
        *("compute ms", "forward ms", "backward ms", "total ms"),
        *(("high ms",) if has_high else ()),
    ]
    rows = [_row(load, has_host=has_host, has_high=has_high) for load in plan.ranks]
    lines = [*_summary(plan), ""]
    lines.append(
        tabulate(
            rows,
            headers=headers,
            floatfmt=".3f",
            colalign=("right",) * len(headers),
            missingval="-",
        )
    )
    if tables:
        lines += ["", *(f"{table.fqn}: {describe_layout(table)}" for table in plan.tables)]
    return "\n".join(lines)


def _summary(plan: TorchRecPlan) -> list[str]:
    samples = plan.batch_size * plan.world_size
    kinds: dict[str, int] = {}
    for table in plan.tables:
        kinds[table.sharding_type] = kinds.get(table.sharding_type, 0) + 1
    cost = "no predicted cost" if plan.cost_ms is None else f"predicted cost {plan.cost_ms:.3f} ms"
    lines = [
        f"{cost} a step on {plan.world_size} ranks ({plan.compute_device}), {plan.batch_size} samples each "
        f"(planned in {plan.planning_ms:.1f} ms)",
        f"{len(plan.tables)} tables: "
        + ", ".join(f"{count} {type_}" for type_, count in sorted(kinds.items())),
        provenance(plan.cost_models, samples),
    ]
    lines += [f"note: {note}" for note in plan.notes]
    lines += [f"outside the training data: {what}" for what in plan.outside_training]
    if plan.assumed_histograms:
        lines.append(
            f"reuse histograms assumed (Zipf) for {len(plan.assumed_histograms)} of {len(plan.tables)} "
            "tables: give table_stats to plan with real ones"
        )
    if plan.assumed_pooling:
        lines.append(
            f"pooling factors assumed to be 1 for {len(plan.assumed_pooling)} of {len(plan.tables)} "
            f"tables, {listed(plan.assumed_pooling)}: give table_stats or constraints"
        )
    if plan.excluded:
        lines.append(
            f"not in the plan: {len(plan.excluded)} tables of other device groups, {listed(plan.excluded)}"
        )
    return lines


def _row(load: RankLoad, *, has_host: bool, has_high: bool) -> tuple[object, ...]:
    larger = max(load.estimated_bytes, load.training_bytes)
    return (
        load.rank,
        load.num_shards,
        format_bytes(load.estimated_bytes),
        format_bytes(load.training_bytes),
        f"{larger / load.cap_bytes:.1%}" if load.cap_bytes > 0 else "-",
        *((format_bytes(load.host_bytes),) if has_host else ()),
        load.compute_ms,
        load.forward_comm_ms,
        load.backward_comm_ms,
        load.total_ms,
        *((load.high_ms,) if has_high else ()),
    )
