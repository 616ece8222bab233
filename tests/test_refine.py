"""Refining: plans that the search proposes are measured, and models trained on them agree with them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from neuroshard_fast import config
from neuroshard_fast.cli.main import main
from neuroshard_fast.cost_data import read_communication, read_compute
from neuroshard_fast.cost_models import CostModels
from neuroshard_fast.errors import InputError
from neuroshard_fast.profile.compute import profile_compute
from neuroshard_fast.profile.log import MeasurementLog
from neuroshard_fast.profile.plan_rounds import PlanRound, settled_cost
from neuroshard_fast.refine import (
    Comparison,
    Cycle,
    Refinement,
    RefineOptions,
    refine,
)
from neuroshard_fast.refine import run as refine_run
from neuroshard_fast.refine.comparison import compare
from neuroshard_fast.refine.measure import REPEAT_EVERY, MeasuringJob, Step, measure_steps
from neuroshard_fast.refine.samples import PlanMeasurement, write_communication, write_compute
from neuroshard_fast.refine.state import State, locked
from neuroshard_fast.refine.tasks import PlannedTasks
from neuroshard_fast.tables import EmbeddingTable, Feature, TableSet
from refine_cases import OPTIONS, POOL, simulate_cost_data

torch = pytest.importorskip("torch")

from neuroshard_fast.pretrain import PretrainOptions, pretrain  # noqa: E402 needs torch

TRAINING = PretrainOptions(epochs=25)
TWO_CYCLES = replace(OPTIONS, cycles=2, target_bias=0.0)
LABEL = "plans_4_4096"


@pytest.fixture(scope="session")
def simulated_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cost data, simulated; to be copied before it grows."""
    return simulate_cost_data(tmp_path_factory.mktemp("refine") / "data")


@pytest.fixture(scope="session")
def biased_models(simulated_data: Path) -> CostModels:
    """Models that predict a quarter too much compute."""
    models = pretrain(simulated_data, "start", TRAINING, progress=False)
    last = len(models.layers("compute.set")) - 1
    scaled = {
        name: tensor * np.float32(1.25) if name.startswith(f"compute.set.{last}.") else tensor
        for name, tensor in models.tensors.items()
    }
    return CostModels(models.info, scaled)


@pytest.fixture(scope="session")
def uninterrupted(
    simulated_data: Path, biased_models: CostModels, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Refinement]:
    """What two cycles come to, and the cost data with their samples."""
    data = Path(shutil.copytree(simulated_data, tmp_path_factory.mktemp("two") / "data"))
    return data, run(data, biased_models, TWO_CYCLES)


@pytest.fixture
def data(simulated_data: Path, tmp_path: Path) -> Path:
    """A copy of the cost data."""
    return Path(shutil.copytree(simulated_data, tmp_path / "data"))


def run(data: Path, models: CostModels, options: RefineOptions = OPTIONS) -> Refinement:
    return refine(
        data, POOL, models, options, output=data.parent / "refined.safetensors", training=TRAINING
    )


def table(name: str, rows: int = 500, dim: int = 8, factor: float = 3.0) -> EmbeddingTable:
    return EmbeddingTable(
        name=name,
        num_embeddings=rows,
        embedding_dim=dim,
        features=(Feature(name=name, pooling_factor=factor),),
    )


# --- comparing ---


def test_bias_mape_and_noise_floor_are_as_defined() -> None:
    comparison = compare([11.0, 18.0], [[10.0, 9.0, 11.0], [20.0, 20.0, 30.0]])
    assert comparison.samples == 2
    assert comparison.bias == pytest.approx((0.1 - 0.1) / 2)
    assert comparison.bias_error == pytest.approx(0.1)  # stdev of 0.1 and -0.1, over the root of 2
    assert comparison.mape == pytest.approx(0.1)
    first = [0.0, 1.5 / 10.5, 1.5 / 9.5]
    second = [5 / 25, 5 / 25, 10 / 20]
    assert comparison.noise_floor == pytest.approx(np.mean([*first, *second]))


def test_costs_measured_once_have_no_noise_floor() -> None:
    comparison = compare([10.2], [[10.0]])
    assert (comparison.noise_floor, comparison.bias_error) == (None, None)
    assert comparison.is_within(0.03, 1.0)  # the bias wanted takes its place
    assert not comparison.is_within(0.03, 0.5)
    assert not comparison.is_within(0.01, 5.0)


def test_agreement_wants_a_small_bias_and_a_mape_near_the_noise_floor() -> None:
    sound = Comparison(samples=9, bias=-0.015, bias_error=0.01, mape=0.04, noise_floor=0.03)
    assert sound.is_within(0.02, 1.5)
    assert not sound.is_within(0.01, 1.5)
    assert not sound.is_within(0.02, 1.3)
    assert not msgspec.structs.replace(sound, bias=0.021).is_within(0.02, 1.5)


def test_settled_costs_leave_out_the_waiting_for_whatever_device_is_slow_by_chance() -> None:
    rounds = [
        PlanRound([10.0, 12.0], [5.0, 3.0], [1.0, 1.0]),
        PlanRound([12.0, 10.0], [3.0, 5.0], [1.0, 1.0]),
        PlanRound([11.0, 11.0], [3.0, 3.0], [1.0, 1.0]),
    ]
    assert [each.cost_ms for each in rounds] == [16.0, 16.0, 15.0]
    assert settled_cost(rounds) == 15.0
    assert settled_cost(rounds[:1]) == 16.0


# --- the loop ---


def test_biased_models_come_to_agree_with_simulated_costs(
    data: Path, biased_models: CostModels
) -> None:
    seen: list[tuple[int, bool]] = []
    refined = refine(
        data,
        POOL,
        biased_models,
        OPTIONS,
        output=data / "refined.safetensors",
        training=TRAINING,
        on_cycle=lambda number, cycle: seen.append((number, cycle.is_trained)),
    )
    first, *_, last = refined.cycles
    assert first.compute.bias > 0.15
    assert abs(last.compute.bias) < first.compute.bias / 3
    assert abs(last.proposed.bias) < first.proposed.bias / 3
    assert first.proposed.noise_floor is None
    assert first.proposed.samples == 20
    assert first.baselines is not None
    assert seen[:2] == [(1, False), (1, True)]
    assert CostModels.load(data / "refined.safetensors").info == refined.models.info
    assert refined.models.info.source == "simulated"
    # What every cycle but an agreeing one measured is in the data: a sample a device, one a plan.
    trained = sum(cycle.is_trained for cycle in refined.cycles)
    compute = read_compute(data / f"compute-{LABEL}")
    all_to_alls = read_communication(data / f"comm_4-{LABEL}")
    # Each task is planned by the search and by a baseline.
    assert len(all_to_alls.dims) == trained * 40
    assert trained * 120 < len(compute.costs) <= trained * 160
    for part in (compute, all_to_alls):
        assert part.info is not None
        assert part.info.drawn_from == "plans"
        assert part.info.source == "simulated"


def test_models_that_agree_are_kept_as_they_are(data: Path, biased_models: CostModels) -> None:
    lenient = replace(OPTIONS, target_bias=10.0)
    refined = run(data, biased_models, lenient)
    assert refined.agrees
    assert len(refined.cycles) == 1
    assert not refined.cycles[0].is_trained
    assert not (data / f"compute-{LABEL}").exists()
    for name, tensor in CostModels.load(data.parent / "refined.safetensors").tensors.items():
        assert np.array_equal(tensor, biased_models.tensors[name])
    assert run(data, biased_models, lenient).cycles == refined.cycles  # nothing more to do
    # With other targets the cycle that was compared is trained with.
    stricter = run(data, biased_models, replace(OPTIONS, target_bias=1e-6, cycles=1))
    assert [cycle.is_trained for cycle in stricter.cycles] == [True]
    assert stricter.cycles[0].proposed == refined.cycles[0].proposed
    assert not stricter.agrees


def test_a_used_up_budget_ends_a_run_and_the_next_one_goes_on(
    data: Path, biased_models: CostModels
) -> None:
    short = replace(OPTIONS, budget_seconds=0.0, target_bias=0.0)
    assert len(run(data, biased_models, short).cycles) == 1
    assert len(run(data, biased_models, short).cycles) == 2
    assert len(run(data, biased_models, replace(short, cycles=2)).cycles) == 2


@pytest.mark.parametrize("step", ["plan_tasks", "compare", "write_communication", "pretrain"])
def test_an_interrupted_run_goes_on_and_comes_to_the_same(
    step: str,
    data: Path,
    biased_models: CostModels,
    uninterrupted: tuple[Path, Refinement],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = uninterrupted[1]
    where: Any = "neuroshard_fast.pretrain" if step == "pretrain" else refine_run.__name__
    with monkeypatch.context() as patched:
        patched.setattr(f"{where}.{step}", _interrupted(step, calls=2))
        with pytest.raises(KeyboardInterrupt):
            run(data, biased_models, TWO_CYCLES)
    resumed = run(data, biased_models, TWO_CYCLES)
    assert list(map(_outcome, resumed.cycles)) == list(map(_outcome, expected.cycles))
    for name, tensor in expected.models.tensors.items():
        assert np.array_equal(tensor, resumed.models.tensors[name])
    for file in (f"compute-{LABEL}/data.txt", f"comm_4-{LABEL}/data.txt"):
        assert (data / file).read_bytes() == (uninterrupted[0] / file).read_bytes()


def _interrupted(step: str, calls: int) -> Callable[..., Any]:
    """What ``step`` does, but for an interruption at the end of that many calls."""
    import neuroshard_fast.pretrain

    module = neuroshard_fast.pretrain if step == "pretrain" else refine_run
    real = getattr(module, step)
    made = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal made
        result = real(*args, **kwargs)
        made += 1
        if made >= calls:
            raise KeyboardInterrupt
        return result

    return wrapped


def _outcome(cycle: Cycle) -> tuple[Any, ...]:
    return cycle.proposed, cycle.compute, cycle.forward, cycle.backward, cycle.baselines


def test_tasks_are_fresh_in_every_cycle(uninterrupted: tuple[Path, Refinement]) -> None:
    tasks = [
        tuple((table.name, table.embedding_dim) for table in task.tables)
        for cycle in (1, 2)
        for task in config.load(
            uninterrupted[0] / f"refine-{LABEL}/cycle_{cycle}/plans.json", PlannedTasks
        ).tasks
    ]
    assert len(set(tasks)) == 40
    assert {len(task) for task in tasks} == set(range(8, 13))
    assert len({dim for task in tasks for _, dim in task}) > 3


def test_samples_of_earlier_cycles_are_only_added_to(
    data: Path, biased_models: CostModels, uninterrupted: tuple[Path, Refinement]
) -> None:
    run(data, biased_models, replace(TWO_CYCLES, cycles=1))
    for file in ("compute-{}/data.txt", "compute-{}/table_configs.json", "comm_4-{}/data.txt"):
        earlier = (data / file.format(LABEL)).read_text().removesuffix("\n]\n")
        later = (uninterrupted[0] / file.format(LABEL)).read_text()
        assert later.startswith(earlier)
        assert len(later) > len(earlier) + 10


# --- what is refused ---


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"seed": 1}, "seed"),
        ({"tasks_per_cycle": 21}, "tasks_per_cycle"),
        ({"tables_per_task": (8, 11)}, "tables_per_task"),
        ({"dims": (4, 8)}, "dims"),
        ({"memory_bytes": 2**31}, "memory_bytes"),
        ({"baselines": 0}, "baselines"),
        ({"rounds": 4}, "rounds"),
        ({"hardware": "a100"}, "hardware"),
    ],
)
def test_other_arguments_are_refused_by_name(
    change: dict[str, Any], field: str, data: Path, biased_models: CostModels
) -> None:
    run(data, biased_models, replace(OPTIONS, target_bias=10.0))
    with pytest.raises(InputError, match=rf"state.json: was begun with other {field} \("):
        run(data, biased_models, replace(OPTIONS, **change))


def test_other_arguments_are_refused_as_soon_as_a_run_was_begun(
    data: Path, biased_models: CostModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(refine_run, "simulate_plans", _interrupted("simulate_plans", calls=1))
        with pytest.raises(KeyboardInterrupt):
            run(data, biased_models)
    with pytest.raises(InputError, match="was begun with other seed"):
        run(data, biased_models, replace(OPTIONS, seed=1))


def test_other_tables_and_other_models_are_refused(data: Path, biased_models: CostModels) -> None:
    lenient = replace(OPTIONS, target_bias=10.0)
    run(data, biased_models, lenient)
    output = data.parent / "refined.safetensors"
    fewer = TableSet.of(POOL.tables[:-1])
    with pytest.raises(InputError, match="was begun with other tables"):
        refine(data, fewer, biased_models, lenient, output=output)
    renamed = CostModels(
        msgspec.structs.replace(biased_models.info, name="others"), biased_models.tensors
    )
    with pytest.raises(InputError, match="was begun with other cost_models"):
        refine(data, POOL, renamed, lenient, output=output)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"devices": 1}, "devices must lie between 2"),
        ({"tasks_per_cycle": 19}, "tasks_per_cycle must lie between 20"),
        ({"tables_per_task": (5, 3)}, "tables_per_task: the fewest must lie between 1 and 3"),
        ({"tables_per_task": (5,)}, "tables_per_task must be two numbers"),
        ({"dims": (6,)}, "dims must be multiples of 4"),
        ({"dims": ()}, "dims: at least one"),
        ({"baselines": 5}, "baselines must lie between 0 and 4"),
        ({"target_bias": float("nan")}, "target_bias must be a finite number"),
        ({"cycles": 0}, "cycles must lie between 1"),
        ({"rounds": 0}, "rounds must lie between 1"),
    ],
)
def test_bad_options_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(OPTIONS, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tables_per_task": (10, 61)}, "the most is 61, but there are only 60 tables"),
        ({"memory_bytes": 1000}, "none of 100 tasks drawn can be planned: give more memory"),
        ({"batch_size": 512}, "hold for batch size 4096, not 512"),
        ({"hardware": "z80"}, "hardware must be one of a100, h100, h200, got 'z80'"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    change: dict[str, Any], message: str, data: Path, biased_models: CostModels
) -> None:
    with pytest.raises(InputError, match=message):
        run(data, biased_models, replace(OPTIONS, **change))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda state: "[" * 100_000, "state.json: Expected `object`"),
        (lambda state: json.dumps(state)[:-30], "state.json: "),
        (lambda state: "null", "state.json: "),
        (lambda state: json.dumps({**state, "schema": "other"}), "is a file of schema 'other'"),
        (
            lambda state: json.dumps({**state, "cycles": [{**state["cycles"][0], "seconds": -1}]}),
            "seconds must be a finite number between 0",
        ),
        (
            lambda state: json.dumps({**state, "cycles": state["cycles"] * 2}),
            "cycle 1 lacks its training, but is not the last",
        ),
        (
            lambda state: json.dumps(
                {**state, "cycles": [{**state["cycles"][0], "is_trained": True}]}
            ),
            "cycle_1/models.safetensors: cannot be read",
        ),
    ],
)
def test_a_spoilt_state_is_refused_by_file_and_field(
    spoil: Callable[[Any], str], message: str, data: Path, biased_models: CostModels
) -> None:
    run(data, biased_models, replace(OPTIONS, target_bias=10.0))
    file = data / f"refine-{LABEL}/state.json"
    file.write_text(spoil(json.loads(file.read_bytes())))
    with pytest.raises(InputError, match=message):
        run(data, biased_models)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda tasks: tasks[:-1], r"plans.json: tasks: 20 wanted, got 19"),
        (lambda tasks: [{**tasks[0], "plans": []}, *tasks[1:]], r"tasks\[0\]: the first plan"),
        (lambda tasks: [tasks[1], *tasks[1:]][::-1], None),
        (
            lambda tasks: [*tasks[:-1], {**tasks[-1], "plans": tasks[0]["plans"]}],
            r"plans.json: tasks\[19\]: plans\[0\]: plan: ",
        ),
    ],
)
def test_spoilt_plans_are_refused_by_file_and_field(
    spoil: Callable[[Any], Any], message: str | None, data: Path, biased_models: CostModels
) -> None:
    run(data, biased_models, replace(OPTIONS, target_bias=10.0))
    file = data / f"refine-{LABEL}/cycle_1/plans.json"
    content = json.loads(file.read_bytes())
    file.write_text(json.dumps({**content, "tasks": spoil(content["tasks"])}))
    options = replace(OPTIONS, target_bias=0.0, cycles=1)
    if message is None:  # other plans of the same kind are as good
        assert len(run(data, biased_models, options).cycles) == 1
        return
    with pytest.raises(InputError, match=message):
        run(data, biased_models, options)


def test_data_that_cannot_be_trained_on_with_the_samples_is_refused_before_measuring(
    data: Path, biased_models: CostModels
) -> None:
    pytest.importorskip("fbgemm_gpu")
    with pytest.raises(InputError, match=r"its costs are simulated .* \(backend fbgemm\)"):
        run(data, biased_models, replace(OPTIONS, hardware=None))
    unseen = msgspec.structs.replace(POOL[7], name="unseen", num_embeddings=77)
    profile_compute(
        TableSet.of([unseen]),
        data,
        samples=20,
        batch_size=4096,
        memory_bytes=2**30,
        hardware="h100",
        held_out=True,
    )
    with pytest.raises(InputError, match="compute_heldout: holds table 'unseen', which"):
        refine(
            data,
            TableSet.of([*POOL, unseen]),
            biased_models,
            OPTIONS,
            output=data.parent / "refined.safetensors",
        )
    assert not (data / f"refine-{LABEL}").exists()


def test_two_refinements_in_one_folder_are_refused(data: Path, biased_models: CostModels) -> None:
    with locked(data), pytest.raises(InputError, match="another process is refining in it"):
        run(data, biased_models)


def test_samples_of_unknown_origin_are_not_overwritten(
    data: Path, biased_models: CostModels
) -> None:
    (data / f"compute-{LABEL}").mkdir()
    with pytest.raises(InputError, match=f"compute-{LABEL}: holds samples of plans, but"):
        run(data, biased_models)


# --- samples ---


def _info(data: Path, **changes: Any) -> Any:
    from neuroshard_fast.cost_data import CostDataInfo

    info = CostDataInfo(
        source="measured",
        backend="fbgemm",
        hardware="a processor",
        batch_size=16,
        seed=0,
        warmup=1,
        iterations=1,
        rounds=2,
        drawn_from="plans",
        versions={"torch": "2"},
        date="2024-01-01",
    )
    return msgspec.structs.replace(info, **changes)


def test_device_loads_and_all_to_alls_become_samples(tmp_path: Path) -> None:
    a, b, wide = table("a"), table("b"), table("a", dim=16)
    rounds = [
        PlanRound([1.0, 2.0], [4.0, 2.0], [0.5, 0.25]),
        PlanRound([1.5, 2.0], [3.5, 2.0], [0.5, 0.75]),
        PlanRound([3.0, 2.5], [2.0, 3.0], [0.75, 0.25]),
        PlanRound([2.5, 2.0], [2.0, 3.0], [0.5, 0.5]),
    ]
    plans = [
        PlanMeasurement([[a, b], [wide, a]], rounds, is_repeated=True),
        PlanMeasurement([[], [b, wide]], [PlanRound([0.0, 2.0], [5.0, 3.0], [0.5, 0.5])], False),
    ]
    write_compute(tmp_path / "compute", _info(tmp_path), plans)
    compute = read_compute(tmp_path / "compute")
    assert compute.samples == [(0, 1), (2, 0), (1, 2)]
    assert compute.costs.tolist() == [2.0, 2.25, 2.0]  # medians of the first and third round
    repeats = (tmp_path / "compute/repeats.txt").read_text()
    assert repeats == "0 2.000000\n1 2.000000\n"
    assert compute.noise_floor == pytest.approx(np.mean([0.0, 0.0, 0.25 / 2, 0.25 / 2.25]))

    comm_info = _info(tmp_path, backend="gloo", world_size=2, sampling=2)
    write_communication(tmp_path / "comm", comm_info, plans)
    comm = read_communication(tmp_path / "comm")
    assert comm.dims.tolist() == [[16.0, 24.0], [0.0, 24.0]]
    # The second device started 0.75 ms after the first in the first round, 1 ms before it in the third:
    # medians 0.5 and 0.375, less the smaller.
    assert comm.starts[0].tolist() == pytest.approx([0.125, 0.0])
    assert comm.forward[0].tolist() == [3.0, 2.5]
    assert comm.backward[0].tolist() == [0.625, 0.25]
    assert comm.starts[1].tolist() == [0.0, 2.0]
    assert comm.forward[1].tolist() == [5.0, 3.0]
    assert comm.noise_floor_backward is not None


# --- measuring ---


def _steps(count: int) -> list[Step]:
    return [Step([[table("a"), table(f"t{k}")], [table("b")]]) for k in range(count)]


def test_rounds_that_were_measured_are_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from neuroshard_fast.profile import distributed

    pytest.importorskip("fbgemm_gpu")
    measured: list[int] = []
    interrupted_after = 9

    def launch(world_size: int, module: str, job_file: str) -> None:
        assert (world_size, module) == (2, "neuroshard_fast.refine.worker")
        job = config.load(job_file, MeasuringJob)
        log = MeasurementLog(
            job.folder,
            job.info,
            {},
            is_shared=True,
            shape=(3, 2),
            repeat_every=REPEAT_EVERY,
        )
        for number in job.order:
            if len(measured) == interrupted_after:
                log.close()
                raise KeyboardInterrupt
            measured.append(number)
            log.add(number, [[1.0 + number, 1.0], [1.0, 1.0], [0.5, 0.5]])
        log.close()

    monkeypatch.setattr(distributed, "launch", launch)
    info = _info(tmp_path, world_size=2)
    with pytest.raises(KeyboardInterrupt):
        measure_steps(tmp_path, info, _steps(6), "fbgemm")
    interrupted_after = -1
    rounds = measure_steps(tmp_path, info, _steps(6), "fbgemm")
    each_round = [0, 1, 2, 3, 4, 5, 0, 5]  # each fifth once more at the end
    assert measured == each_round * 2
    assert list(map(len, rounds)) == [4, 2, 2, 2, 2, 4]
    assert rounds[3][0].compute_ms == [4.0, 1.0]
    measured.clear()
    assert measure_steps(tmp_path, info, _steps(6), "fbgemm") == rounds
    assert not measured
    with (tmp_path / "rounds.txt").open("a") as file:
        file.write("2 1,0 1,1 1,1\n")
    with pytest.raises(InputError, match="a round of step 2: compute must be above 0 just for"):
        measure_steps(tmp_path, info, _steps(6), "fbgemm")


def test_plans_are_measured_by_a_process_a_device(
    tmp_path: Path, biased_models: CostModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fbgemm_gpu")
    from neuroshard_fast.pretrain.run import CostData

    monkeypatch.setattr("neuroshard_fast.pretrain.pretrain", lambda *_args: biased_models)
    monkeypatch.setattr(
        "neuroshard_fast.pretrain.run.read_cost_data", lambda *_args: CostData([], [], [])
    )
    monkeypatch.setattr("neuroshard_fast.refine.options.FEWEST_TASKS", 1)
    options = RefineOptions(
        devices=2,
        memory_bytes=2**26,
        batch_size=4096,
        tasks_per_cycle=1,
        tables_per_task=(3, 3),
        dims=(4, 8),
        rounds=1,
        cycles=1,
    )
    refined = refine(tmp_path, POOL, biased_models, options, output=tmp_path / "out.safetensors")
    (cycle,) = refined.cycles
    assert cycle.is_trained
    assert cycle.proposed.bias > -1
    assert cycle.proposed.noise_floor is not None  # the first plan of a cycle is measured twice
    label = "plans_2_4096"
    lines = (tmp_path / f"refine-{label}/cycle_1/rounds.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["0", "1", "0"]
    compute = read_compute(tmp_path / f"compute-{label}")
    comm = read_communication(tmp_path / f"comm_2-{label}")
    assert len(comm.dims) == 2
    assert (compute.costs > 0).all()
    assert (comm.forward > 0).all()
    assert compute.noise_floor is not None
    assert comm.noise_floor_forward is not None
    for part, backend in ((compute, "fbgemm"), (comm, "gloo")):
        assert part.info is not None
        assert (part.info.source, part.info.backend) == ("measured", backend)
        assert (part.info.drawn_from, part.info.rounds) == ("plans", 1)


# --- the command ---


def test_the_command_prints_cycles_and_writes_models_and_a_picture(
    data: Path, biased_models: CostModels, capsys: pytest.CaptureFixture[str]
) -> None:
    start, tables, out, plot = (
        str(data.parent / name) for name in ("s.safetensors", "t.json", "o.safetensors", "p.png")
    )
    biased_models.save(start)
    POOL.save(tables)
    command = ["refine", str(data), tables, "--cost-models", start, "-o", out, "--plot", plot]
    command += ["--devices", "4", "--memory", "1GiB", "--batch-size", "4096"]
    command += ["--tables-per-task", "8,12", "--epochs", "3"]
    command += ["--backend", "simulated", "--hardware", "h100", "--cycles", "1"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "predicted against SIMULATED h100 costs" in printed
    assert "cycle 1: compared, bias +" in printed
    assert "cycle 1: new models trained" in printed
    assert "costs did not agree yet" in printed
    state = config.load(data / f"refine-{LABEL}/state.json", State)
    assert f"{state.cycles[0].proposed.bias:+.2%}" in printed
    assert CostModels.load(out).info.name == "o"
    assert Path(plot).read_bytes().startswith(b"\x89PNG")
    assert main([*command, "--budget", "soon"]) == 2
    assert "duration 'soon' is not a number with a unit" in capsys.readouterr().err
    assert main([*command[:-2], "-o", start]) == 2
    assert "would overwrite the cost models to begin with" in capsys.readouterr().err
    assert main([*command, "--seed", "1"]) == 2
    assert "was begun with other seed (0, not 1)" in capsys.readouterr().err
