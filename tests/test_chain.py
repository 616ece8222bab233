"""The whole chain on real measurements: profile, pretrain, plan, evaluate; all through the command line."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import msgspec
import pytest

from neuroshard_fast import EmbeddingTable, Feature, ShardingPlan, TableSet
from neuroshard_fast.cli.main import main

BATCH_SIZE = 512
SEEDS = range(5)


def _skewed_tables() -> TableSet:
    """One table that costs more than all others together: balance takes a column split.

    Its lookups are all distinct, so that they cost memory traffic, which a split halves.
    """
    once = (1.0, *[0.0] * 16)
    dear = _table("dear", rows=200_000, dim=256, pooling_factor=150.0, reuse_histogram=once)
    cheap = [_table(f"t{k}", rows=20_000, dim=8, pooling_factor=2.0) for k in range(15)]
    return TableSet.of([dear, *cheap])


def _table(
    name: str,
    *,
    rows: int,
    dim: int,
    pooling_factor: float,
    reuse_histogram: tuple[float, ...] | None = None,
) -> EmbeddingTable:
    return EmbeddingTable(
        name=name,
        num_embeddings=rows,
        embedding_dim=dim,
        features=(Feature(name="f", pooling_factor=pooling_factor),),
        reuse_histogram=reuse_histogram,
    )


def _run(*arguments: str) -> None:
    assert main(list(arguments)) == 0


def test_measured_models_give_plans_that_measure_better_than_random(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables, data, models = tmp_path / "tables.json", tmp_path / "data", tmp_path / "m.safetensors"
    _skewed_tables().save(tables)
    common = ("-o", str(data), "--batch-size", str(BATCH_SIZE))
    _run("profile", "compute", str(tables), *common, "--samples", "200", "--rounds", "1")
    _run("profile", "comm", *common, "--devices", "2", "--samples", "60", "--rounds", "1")
    _run("pretrain", str(data), "-o", str(models), "--epochs", "150")

    def plan(name: str, *options: str) -> ShardingPlan:
        path = tmp_path / name
        arguments = [str(tables), "--devices", "2", "--memory", "1GiB", "-o", str(path)]
        _run("plan", *arguments, "--cost-models", str(models), *options)
        return ShardingPlan.load(path)

    names = ["neuroshard.json", *(f"random{seed}.json" for seed in SEEDS)]
    ours = plan(names[0])
    random = [
        plan(name, "--algorithm", "random", "--seed", str(seed))
        for name, seed in zip(names[1:], SEEDS, strict=True)
    ]
    assert ours.cost_models.source == "measured"
    assert statistics.fmean(made.cost_ms for made in random) >= 1.5 * ours.cost_ms

    out = tmp_path / "measured.json"
    plans = [str(tmp_path / name) for name in names]
    _run("evaluate", str(tables), "--plans", *plans, "--rounds", "3", "--json", str(out))
    costs = [measured["compute_cost_ms"] for measured in json.loads(out.read_text())["problems"][0]]
    with capsys.disabled():
        print(
            f"\npredicted cost: neuroshard {ours.cost_ms:.2f} ms, "
            f"random {statistics.fmean(made.cost_ms for made in random):.2f} ms on average"
            f"\nmeasured compute: neuroshard {costs[0]:.2f} ms, "
            f"random {statistics.fmean(costs[1:]):.2f} ms on average"
        )
    assert costs[0] < statistics.fmean(costs[1:])


def test_a_plan_for_another_table_set_is_not_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = _skewed_tables()
    tables.save(tmp_path / "tables.json")
    renamed = [msgspec.structs.replace(table, name=f"other {table.name}") for table in tables]
    TableSet.of(renamed).save(tmp_path / "others.json")
    plan = str(tmp_path / "plan.json")
    _run("plan", str(tmp_path / "tables.json"), "--devices", "8", "--memory", "1GiB", "-o", plan)
    assert main(["evaluate", str(tmp_path / "others.json"), "--plans", plan]) == 2
    assert f"{plan}: plan: shards[0]: no table is called '" in capsys.readouterr().err
