"""What there is to know of a plan besides its numbers, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from neuroshard_fast.torchrec.plan import TablePlan
from neuroshard_fast.torchrec.question import Question
from neuroshard_fast.units import format_bytes

_LISTED = 3


def plan_notes(question: Question, tables: Sequence[TablePlan]) -> list[str]:
    """Notes on a plan; ``tables`` are those of ``question``, in its order."""
    return [
        *_row_statistics(question, tables),
        *_uneven_columns(tables),
        *_uncounted_state(question, tables),
        *_unlike_the_models(tables),
    ]


def listed(names: Sequence[str]) -> str:
    """The first of ``names``, and how many more there are."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _row_statistics(question: Question, tables: Sequence[TablePlan]) -> Iterator[str]:
    by_optimizer: dict[str, list[str]] = {}
    for source, table in zip(question.tables, tables, strict=True):
        if source.optimizer.of_whole_rows and any(s.columns < table.dim for s in table.shards):
            by_optimizer.setdefault(source.optimizer.name, []).append(table.fqn)
    for name, fqns in by_optimizer.items():
        yield (
            f"optimizer {name} works on whole rows, and each column shard is a row of its own to it: "
            f"{listed(fqns)} will train otherwise than unsplit (keep_row_statistics=True forbids such "
            "splits)"
        )


def _uneven_columns(tables: Sequence[TablePlan]) -> Iterator[str]:
    uneven = [
        table.fqn
        for table in tables
        if table.kind == "bags"
        and len({shard.columns for shard in table.shards}) > 1
        and len(table.shards) > 1
    ]
    if uneven:
        yield (
            f"column shards of unequal width: {listed(uneven)}; TorchRec 1.8 reads a state_dict of "
            "ShardedTensors back by the width of a table's first shard, so load such checkpoints otherwise, "
            "or plan with uneven_columns=False"
        )


def _uncounted_state(question: Question, tables: Sequence[TablePlan]) -> Iterator[str]:
    more = []
    for source, table in zip(question.tables, tables, strict=True):
        state = source.optimizer
        if source.estimate_factor == 0.0 and (state.bytes_per_element or state.bytes_per_row):
            more.append(
                sum(
                    shard.rows * (shard.columns * state.bytes_per_element + state.bytes_per_row)
                    for shard in table.shards
                )
            )
    if more:
        yield (
            f"TorchRec's estimate leaves out {format_bytes(sum(more))} of optimizer state of {len(more)} "
            "tables, whose optimizer is not attached to their parameters; what training takes has it"
        )


def _unlike_the_models(tables: Sequence[TablePlan]) -> Iterator[str]:
    """Ways to shard that cost models were not trained on."""
    kinds: dict[str, list[str]] = {}
    for table in tables:
        if table.compute_kernel not in ("fused", "dense"):
            kinds.setdefault(table.compute_kernel, []).append(table.fqn)
        elif table.sharding_type == "data_parallel":
            kinds.setdefault("data_parallel", []).append(table.fqn)
        elif table.sharding_type in ("row_wise", "table_row_wise"):
            kinds.setdefault("rows", []).append(table.fqn)
    for kind, fqns in kinds.items():
        if kind == "data_parallel":
            yield (
                f"replicated tables, {listed(fqns)}: predicted are their lookups, not the all-reduce of "
                "their gradients"
            )
        elif kind == "rows":
            yield (
                f"tables cut by rows, {listed(fqns)}: predicted as tables of fewer rows and lookups, their "
                "exchange as an all-to-all"
            )
        else:
            yield f"kernel {kind}, {listed(fqns)}: predicted as if all rows were in device memory"
