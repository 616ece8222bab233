"""Refining on a machine whose speed drifts: samples that are measured again tell how fast it is."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from neuroshard_fast import config, examples
from neuroshard_fast.cost_data import ComputeData, CostDataInfo, read_compute
from neuroshard_fast.cost_models import CostModels
from neuroshard_fast.errors import InputError
from neuroshard_fast.memory import shard_memory
from neuroshard_fast.profile.backends import MeasuringBackendName
from neuroshard_fast.profile.communication import profile_communication
from neuroshard_fast.profile.compute import profile_compute
from neuroshard_fast.profile.plan_rounds import Placement, PlanRound
from neuroshard_fast.refine import RefineOptions, refine
from neuroshard_fast.refine import run as refine_run
from neuroshard_fast.refine.controls import (
    CONTROLS,
    Control,
    draw_controls,
    interleaved,
    round_speeds,
)
from neuroshard_fast.refine.measure import REPEAT_EVERY, simulate_plans
from neuroshard_fast.refine.samples import PlanMeasurement
from neuroshard_fast.refine.tasks import PlannedTasks
from neuroshard_fast.tables import TableSet

pytest.importorskip("torch")

from neuroshard_fast.pretrain import PretrainOptions, pretrain

POOL = examples.dlrm_like(2021, tables=60, batch_size=4096, max_rows=100_000, seed=3)
OPTIONS = RefineOptions(
    devices=4,
    memory_bytes=2**30,
    batch_size=4096,
    tasks_per_cycle=20,
    tables_per_task=(8, 12),
    hardware="h100",
    cycles=1,
    rounds=2,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("controls") / "data"
    profile_compute(POOL, folder, samples=200, batch_size=4096, memory_bytes=2**30, hardware="h100")
    profile_communication(folder, devices=4, samples=100, batch_size=4096, hardware="h100")
    return folder


@pytest.fixture(scope="module")
def models(data: Path) -> CostModels:
    return pretrain(data, "start", PretrainOptions(epochs=5), progress=False)


def test_controls_are_spread_evenly_among_plans() -> None:
    assert interleaved(6, 2) == [0, 1, 6, 2, 3, 4, 7, 5]
    assert interleaved(3, 0) == [0, 1, 2]


def test_controls_are_samples_that_fit_the_devices_and_differ_from_cycle_to_cycle(
    data: Path,
) -> None:
    part = read_compute(data / "compute")
    costs = {round(cost, 6) for cost in part.costs.tolist()}
    controls = draw_controls([part], OPTIONS, 1)
    assert len(controls) == CONTROLS
    assert controls == draw_controls([part], OPTIONS, 1)
    assert controls != draw_controls([part], OPTIONS, 2)
    assert {round(cost, 6) for control in controls for cost in control.costs_ms} <= costs
    small = replace(OPTIONS, memory_bytes=2**26)
    for control in draw_controls([part], small, 1):
        for tables in control.placement:
            needed = sum(shard_memory(table).of_width(table.embedding_dim) for table in tables)
            assert needed <= 2**26
    assert not draw_controls([], OPTIONS, 1)


def test_few_samples_give_few_controls(data: Path) -> None:
    part = read_compute(data / "compute")
    few = ComputeData("compute", part.tables, part.samples[:11], part.costs[:11], part.info, None)
    assert len(draw_controls([few], OPTIONS, 1)) == 2


def test_costs_are_brought_to_the_speed_of_the_cost_data_round_by_round() -> None:
    one = TableSet.of([POOL[0]])
    control = Control(tables=(one, one), costs_ms=(2.0, 4.0))

    def measured(*slowness: float) -> list[PlanRound]:
        return [PlanRound([2.0 * s, 4.0 * s], [s, s], [s, s]) for s in slowness]

    once = PlanMeasurement([[], []], measured(1.25, 0.5), is_repeated=False)
    twice = PlanMeasurement([[], []], measured(1.25, 1.25, 0.5, 0.5), is_repeated=True)
    speeds = round_speeds([control, control], [once, twice], 2)
    assert speeds == pytest.approx([0.8, 2.0])
    for each in (once, twice):
        for round_ in each.at_speeds(speeds).rounds:
            assert round_.compute_ms == pytest.approx([2.0, 4.0])
            assert round_.forward_ms == round_.backward_ms == pytest.approx([1.0, 1.0])


def _as_measured(data: Path) -> None:
    """Simulated cost data that says it was measured."""
    for folder, backend in ((data / "compute", "fbgemm"), (data / "comm_4", "gloo")):
        info = config.load(folder / "info.json", CostDataInfo)
        measured = msgspec.structs.replace(
            info,
            source="measured",
            backend=backend,
            warmup=1,
            iterations=1,
            rounds=1,
        )
        config.save(folder / "info.json", measured)


def test_a_drifting_machine_changes_neither_the_comparison_nor_the_samples(
    data: Path, models: CostModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fbgemm_gpu")
    monkeypatch.setattr("neuroshard_fast.pretrain.pretrain", lambda *_args: models)
    steady, drifting = (
        Path(shutil.copytree(data, tmp_path / name)) for name in ("steady", "drifting")
    )
    out = tmp_path / "out.safetensors"
    (expected,) = refine(steady, POOL, models, OPTIONS, output=out).cycles
    assert expected.speed is None
    slowness = (1.6, 0.7)

    def measure_plans(
        folder: Path, info: CostDataInfo, plans: list[Placement], backend: MeasuringBackendName
    ) -> list[list[PlanRound]]:
        rounds = simulate_plans(plans, "h100", info.batch_size)
        each = [1 if number % REPEAT_EVERY else 2 for number in range(len(plans))]
        return [
            [cost.times(factor) for factor in slowness for _ in range(count)]
            for (cost,), count in zip(rounds, each, strict=True)
        ]

    monkeypatch.setattr(refine_run, "measure_plans", measure_plans)
    _as_measured(drifting)
    options = replace(OPTIONS, hardware=None)
    (cycle,) = refine(drifting, POOL, models, options, output=out).cycles
    assert cycle.speed == pytest.approx(np.mean([1 / factor for factor in slowness]), rel=1e-5)
    for part in ("proposed", "settled", "compute", "forward", "backward", "baselines"):
        drifted, truth = getattr(cycle, part), getattr(expected, part)
        assert (drifted.bias, drifted.mape) == pytest.approx((truth.bias, truth.mape), abs=1e-5)
    label = "plans_4_4096"
    samples = [read_compute(folder / f"compute-{label}").costs for folder in (steady, drifting)]
    assert samples[1] == pytest.approx(samples[0], rel=1e-4)

    plans = drifting / f"refine-{label}/cycle_1/plans.json"
    assert len(PlannedTasks.load(plans, options).controls) == CONTROLS
    spoilt = json.loads(plans.read_text())
    del spoilt["controls"][3]["costs_ms"][0]
    plans.write_text(json.dumps(spoilt))
    with pytest.raises(InputError, match=r"plans.json: controls\[3\]: must be for 4 devices"):
        PlannedTasks.load(plans, options)
