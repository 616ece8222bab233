"""Refining on a machine whose speed drifts: samples that are measured again tell how fast it is."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from neuroshard_fast import config
from neuroshard_fast.cost_data import ComputeData, CostDataInfo, read_communication, read_compute
from neuroshard_fast.cost_models import CostModels
from neuroshard_fast.errors import InputError
from neuroshard_fast.memory import shard_memory
from neuroshard_fast.profile.backends import MeasuringBackendName
from neuroshard_fast.profile.plan_rounds import PlanRound
from neuroshard_fast.profile.sampling import AllToAll
from neuroshard_fast.profile.simulated import SimulatedCommunication
from neuroshard_fast.refine import refine
from neuroshard_fast.refine import run as refine_run
from neuroshard_fast.refine.controls import (
    LOOKUPS,
    TRANSFERS,
    Controls,
    Lookups,
    Speeds,
    Transfers,
    draw_controls,
    interleaved,
)
from neuroshard_fast.refine.measure import REPEAT_EVERY, Step, simulate_plans
from neuroshard_fast.refine.samples import PlanMeasurement
from neuroshard_fast.refine.tasks import PlannedTasks
from neuroshard_fast.tables import TableSet
from refine_cases import OPTIONS as THREE_CYCLES
from refine_cases import POOL, simulate_cost_data

pytest.importorskip("torch")

from neuroshard_fast.pretrain import PretrainOptions, pretrain

OPTIONS = replace(THREE_CYCLES, cycles=1, rounds=2)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate_cost_data(tmp_path_factory.mktemp("controls") / "data")


@pytest.fixture(scope="module")
def models(data: Path) -> CostModels:
    return pretrain(data, "start", PretrainOptions(epochs=5), progress=False)


def test_controls_are_spread_evenly_among_plans() -> None:
    assert interleaved(6, 2) == [0, 1, 6, 2, 3, 4, 7, 5]
    assert interleaved(3, 0) == [0, 1, 2]


def test_controls_are_samples_that_fit_the_devices_and_differ_from_cycle_to_cycle(
    data: Path,
) -> None:
    compute, comm = read_compute(data / "compute"), read_communication(data / "comm_4")
    controls = draw_controls([compute], [comm], OPTIONS, 1)
    assert (len(controls.lookups), len(controls.transfers)) == (LOOKUPS, TRANSFERS)
    assert controls == draw_controls([compute], [comm], OPTIONS, 1)
    assert controls != draw_controls([compute], [comm], OPTIONS, 2)
    controls.require_devices(4, "controls")
    costs = set(compute.costs.tolist())
    drawn = [cost for each in controls.lookups for cost in each.costs_ms]
    assert set(drawn) <= costs
    assert len(set(drawn)) > len(drawn) / 2
    of_data = {tuple(row) for row in np.hstack([comm.dims, comm.starts, comm.backward]).tolist()}
    assert {
        (*each.all_to_all.dims, *each.all_to_all.starts_ms, *each.backward_ms)
        for each in controls.transfers
    } <= of_data
    small = replace(OPTIONS, memory_bytes=2**26)
    fitting = draw_controls([compute], [], small, 1)
    for step in fitting.steps(4):
        for tables in step.placement:
            needed = sum(shard_memory(table).of_width(table.embedding_dim) for table in tables)
            assert needed <= 2**26
    assert draw_controls([], [], OPTIONS, 1) == Controls()


def test_few_samples_give_few_controls(data: Path) -> None:
    part = read_compute(data / "compute")
    few = ComputeData("compute", part.tables, part.samples[:11], part.costs[:11], part.info, None)
    assert len(draw_controls([few], [], OPTIONS, 1).lookups) == 2


ONE = TableSet.of([POOL[0]])
LOOKUP = Lookups(tables=(ONE, ONE), costs_ms=(2.0, 4.0))
TRANSFER = Transfers(all_to_all=AllToAll((8, 16), (0.0, 1.0)), backward_ms=(0.5, 0.25))


def _rounds(slowness: list[tuple[float, float]]) -> list[PlanRound]:
    """Of a machine that takes so many times as long for lookups and for all-to-alls.

    Forward, the first device waits for the second, and the all-to-all itself takes 1 ms at full speed.
    """
    rounds = []
    for lookup, transfer in slowness:
        compute = [2.0 * lookup, 4.0 * lookup]
        backward = [0.5 * transfer, 0.25 * transfer]
        wait = compute[1] + backward[1] - compute[0] - backward[0]
        rounds.append(PlanRound(compute, [wait + transfer, transfer], backward))
    return rounds


def test_costs_are_brought_to_the_speed_of_the_cost_data_round_by_round() -> None:
    controls = Controls(lookups=(LOOKUP,), transfers=(TRANSFER,))
    once = PlanMeasurement([[], []], _rounds([(1.25, 2.0), (0.5, 0.8)]), is_repeated=False)
    twice = PlanMeasurement(
        [[], []], _rounds([(1.25, 2.0), (1.25, 2.0), (0.5, 0.8), (0.5, 0.8)]), is_repeated=True
    )
    speeds = Speeds.of(controls, [once, twice], 2)
    assert speeds.lookups == pytest.approx([0.8, 2.0])
    assert speeds.transfers == pytest.approx([0.5, 1.25])
    assert speeds.of_cycle() == pytest.approx((1.4, 0.875))
    (truth,) = _rounds([(1.0, 1.0)])
    for plan in speeds.undone([once, twice]):
        for each in plan.rounds:
            assert each.compute_ms == pytest.approx(truth.compute_ms)
            assert each.forward_ms == pytest.approx(truth.forward_ms)
            assert each.backward_ms == pytest.approx(truth.backward_ms)


def test_one_kind_of_control_stands_for_the_other_and_none_leaves_costs_as_they_are() -> None:
    plan = PlanMeasurement([[], []], _rounds([(1.25, 2.0)]), is_repeated=False)
    lookups = Speeds.of(Controls(lookups=(LOOKUP,)), [plan], 1)
    assert lookups.lookups + lookups.transfers == pytest.approx([0.8, 0.8])
    transfers = Speeds.of(Controls(transfers=(TRANSFER,)), [plan], 1)
    assert transfers.lookups + transfers.transfers == pytest.approx([0.5, 0.5])
    none = Speeds.of(Controls(), [], 1)
    assert none.of_cycle() == (None, None)
    assert none.undone([plan]) == [plan]


def test_noise_cannot_make_a_forward_cost_negative() -> None:
    early = PlanRound([1.0, 9.0], [4.0, 1.0], [0.5, 0.5])  # less than it had to wait
    assert min(early.at_speeds(1.0, 5.0).forward_ms) > 0


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
    assert (expected.lookup_speed, expected.transfer_speed) == (None, None)
    speeds = ((0.6, 0.8), (1.5, 1.2))  # in lookups and in all-to-alls, round by round

    def measure_steps(
        folder: Path, info: CostDataInfo, steps: list[Step], backend: MeasuringBackendName
    ) -> list[list[PlanRound]]:
        simulated = simulate_plans([step.placement for step in steps], "h100", info.batch_size)
        all_to_alls = SimulatedCommunication("h100", 4, info.batch_size)
        measured = []
        for number, (step, (cost,)) in enumerate(zip(steps, simulated, strict=True)):
            if step.all_to_all is not None:
                forward, backward = all_to_alls.measure_many(
                    [step.all_to_all.dims], [step.all_to_all.starts_ms]
                )
                cost = PlanRound([0.0] * 4, forward[0].tolist(), backward[0].tolist())
            measured.append(
                [
                    cost.at_speeds(1 / lookup, 1 / transfer)
                    for lookup, transfer in speeds
                    for _ in range(1 if number % REPEAT_EVERY else 2)
                ]
            )
        return measured

    monkeypatch.setattr(refine_run, "measure_steps", measure_steps)
    _as_measured(drifting)
    options = replace(OPTIONS, hardware=None)
    (cycle,) = refine(drifting, POOL, models, options, output=out).cycles
    assert (cycle.lookup_speed, cycle.transfer_speed) == pytest.approx((1.05, 1.0), rel=1e-4)
    for part in ("proposed", "settled", "compute", "forward", "backward", "baselines"):
        drifted, truth = getattr(cycle, part), getattr(expected, part)
        assert (drifted.bias, drifted.mape) == pytest.approx((truth.bias, truth.mape), abs=1e-5)
    label = "plans_4_4096"
    samples = [read_compute(folder / f"compute-{label}").costs for folder in (steady, drifting)]
    assert samples[1] == pytest.approx(samples[0], rel=1e-4)

    plans = drifting / f"refine-{label}/cycle_1/plans.json"
    assert len(PlannedTasks.load(plans, options).controls.transfers) == TRANSFERS
    spoilt = json.loads(plans.read_text())
    del spoilt["controls"]["lookups"][3]["costs_ms"][0]
    plans.write_text(json.dumps(spoilt))
    with pytest.raises(InputError, match=r"plans.json: controls: must be for 4 devices"):
        PlannedTasks.load(plans, options)
