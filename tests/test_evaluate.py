"""Evaluation: what plans really cost, measured with one process a device."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from handmade_plans import plan_of
from neuroshard_fast.cli.main import main
from neuroshard_fast.errors import InputError
from neuroshard_fast.plan import CostModelsUsed, ShardingPlan
from neuroshard_fast.profile.evaluation import (
    Evaluation,
    MeasuredLoad,
    MeasuredPlan,
    evaluate_plans,
    evaluate_problems,
)
from neuroshard_fast.tables import EmbeddingTable, Feature, TableSet

pytest.importorskip("torch")
pytest.importorskip("fbgemm_gpu")

DIM = 64
NAMES = "abcdefgh"
TABLES = TableSet.of(
    [
        EmbeddingTable(
            name=name,
            num_embeddings=20_000,
            embedding_dim=DIM,
            features=(Feature(name=name, pooling_factor=100.0),),
        )
        for name in NAMES
    ]
)


ALL_ON_ONE = plan_of(*((name, 0, DIM, 1) for name in NAMES))
BALANCED = plan_of(*((name, 0, DIM, k % 2) for k, name in enumerate(NAMES)))
SPLIT = plan_of(
    *(("a", 0, 32, 0), ("a", 32, 32, 1), ("b", 0, 32, 0), ("b", 32, 32, 1)),
    *((name, 0, DIM, k % 2) for k, name in enumerate("cdefgh")),
)


def test_balanced_plans_are_measured_cheaper_than_one_busy_device() -> None:
    smaller = TableSet.of(TABLES.tables[:2])
    small_plan = plan_of(("a", 0, DIM, 0), ("b", 0, DIM, 0))
    evaluation = evaluate_problems(
        [(TABLES, [ALL_ON_ONE, BALANCED, SPLIT]), (smaller, [small_plan])], rounds=5, iterations=5
    )
    assert (evaluation.world_size, evaluation.batch_size, evaluation.backend) == (2, 256, "fbgemm")
    (one, balanced, split), (small,) = evaluation.problems
    # Half the lookups, or half the columns. The cheapest round, as tests share their processor.
    assert balanced.lowest_ms < 0.8 * one.lowest_ms
    assert split.lowest_ms < 0.8 * one.lowest_ms
    assert one.devices[0].compute_ms == 0.0  # it holds nothing
    # The idle device starts the forward all-to-all at once, and waits for the busy one.
    assert one.devices[0].forward_comm_ms > 0.5 * one.devices[1].compute_ms
    assert small.devices[0].compute_ms < one.devices[1].compute_ms
    for plan in (one, balanced, split, small):
        assert [load.device for load in plan.devices] == [0, 1]
        assert 0 < plan.lowest_ms <= plan.cost_ms <= plan.highest_ms
        assert len(plan.rounds_ms) == 5
        assert sorted(plan.rounds_ms)[::2] == [plan.lowest_ms, plan.cost_ms, plan.highest_ms]
        assert plan.cost_ms >= plan.compute_cost_ms
        assert all(load.backward_comm_ms > 0 for load in plan.devices)


def test_the_command_prints_a_table_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables, first, second, out = (tmp_path / name for name in ("t.json", "1.json", "2.yaml", "o"))
    TABLES.save(tables)
    BALANCED.save(first)
    simulated = CostModelsUsed(name="toy", source="simulated", batch_size=256, hardware="toy GPU")
    msgspec.structs.replace(SPLIT, cost_models=simulated).save(second)
    arguments = ["evaluate", str(tables), "--plans", str(first), str(second), "--json", str(out)]
    assert main([*arguments, "--rounds", "1", "--iterations", "2"]) == 0
    printed = capsys.readouterr().out
    assert "2 devices, batch size 256, medians of 1 rounds of 2 iterations" in printed
    assert printed.count("predicted by ") == 2
    assert "predicted by cost models none: measured on none, batch size 256\n" in printed
    assert "predicted by cost models toy: SIMULATED toy GPU, batch size 256\n" in printed
    evaluation = msgspec.json.decode(out.read_bytes(), type=Evaluation)
    for path, measured in zip((first, second), evaluation.problems[0], strict=True):
        line = next(line for line in printed.splitlines() if line.startswith(str(path)))
        assert f"{measured.cost_ms:.3f}" in line


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (plan_of(("z", 0, DIM, 0)), r"shards\[0\]: no table is called 'z'"),
        (plan_of(("a", 0, DIM, 0)), "table 'b': shards have 0 columns of 64"),
        (plan_of(("a", 0, 32, 0), ("a", 28, 36, 1)), "table 'a': shards do not meet at column 32"),
        (plan_of(("a", 0, 30, 0), ("a", 30, 34, 1)), r"shards\[0\]: width: .*multiple of 4"),
        (plan_of(("a", 0, 32, 0)), "table 'a': shards have 32 columns of 64"),
        (plan_of(("a", 0, 128, 0)), "table 'a': shards have 128 columns of 64"),
    ],
)
def test_plans_of_other_tables_are_refused(plan: ShardingPlan, message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluate_plans(TABLES, [plan])


def test_a_plan_of_other_tables_is_named_and_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tables, sound, other = (tmp_path / name for name in ("t.json", "sound.json", "other.json"))
    TABLES.save(tables)
    BALANCED.save(sound)
    plan_of(("z", 0, DIM, 0)).save(other)
    looked_at: list[ShardingPlan] = []
    place = ShardingPlan.tables_by_device

    def counted(plan: ShardingPlan, tables: TableSet) -> list[list[EmbeddingTable]]:
        looked_at.append(plan)
        return place(plan, tables)

    monkeypatch.setattr(ShardingPlan, "tables_by_device", counted)
    assert main(["evaluate", str(tables), "--plans", str(sound), str(other)]) == 2
    error = capsys.readouterr().err
    assert error == f"error: {other}: plan: shards[0]: no table is called 'z'\n"
    assert looked_at == [BALANCED, ShardingPlan.load(other)]
    with pytest.raises(InputError, match=r"^plans\[1\]: plan: shards\[0\]: no table"):
        evaluate_plans(TABLES, [BALANCED, ShardingPlan.load(other)])


@pytest.mark.parametrize(
    ("batch_size", "message"),
    [
        (0, "plan.json: plan: batch_size must lie between 1"),
        (-256, "plan.json: plan: batch_size must lie between 1"),
        (2**40, "plan.json: plan: batch_size must lie between 1"),
        (2.5, "plan.json: batch_size: Expected `int`"),
        (2**31, "more memory than is available here; scale the tables or the batch down"),
    ],
)
def test_a_batch_size_edited_by_hand_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], batch_size: float, message: str
) -> None:
    busy = Feature(name="busy", pooling_factor=1e6)
    one = msgspec.structs.replace(TABLES[0], features=(busy,))
    TableSet.of([one]).save(tmp_path / "t.json")
    plan = msgspec.to_builtins(plan_of(("a", 0, DIM, 0)))
    (tmp_path / "plan.json").write_text(json.dumps({**plan, "batch_size": batch_size}))
    assert main(["evaluate", str(tmp_path / "t.json"), "--plans", str(tmp_path / "plan.json")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error


def test_plans_are_measured_at_their_batch_size_and_predictions_for_another_are_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    TABLES.save(tmp_path / "t.json")
    msgspec.structs.replace(BALANCED, batch_size=1).save(tmp_path / "p.json")
    arguments = ["evaluate", str(tmp_path / "t.json"), "--plans", str(tmp_path / "p.json")]
    assert main([*arguments, "--rounds", "1", "--iterations", "1"]) == 0
    printed = capsys.readouterr().out
    assert "2 devices, batch size 1, medians" in printed
    assert "batch size 256 (planned for batch size 1: the predictions are off)" in printed


def test_plans_that_cannot_be_compared_are_refused() -> None:
    for other, field in (
        (plan_of(*((x, 0, DIM, 0) for x in NAMES), devices=3), "world_size"),
        (plan_of(*((x, 0, DIM, 0) for x in NAMES), batch=512), "batch_size"),
    ):
        with pytest.raises(InputError, match=f"all must have the same {field}"):
            evaluate_plans(TABLES, [BALANCED, other])
    with pytest.raises(InputError, match="there is no plan"):
        evaluate_plans(TABLES, [])
    with pytest.raises(InputError, match="rounds must lie between"):
        evaluate_plans(TABLES, [BALANCED], rounds=0)
    with pytest.raises(InputError, match="names: one for each of 1 plans wanted, got 2"):
        evaluate_plans(TABLES, [BALANCED], names=["a", "b"])


def test_tables_larger_than_this_machine_are_refused() -> None:
    huge = TableSet.of([msgspec.structs.replace(TABLES[0], num_embeddings=2**38)])
    with pytest.raises(InputError, match="more memory than is available here"):
        evaluate_plans(huge, [plan_of(("a", 0, DIM, 0))])


def test_its_schema_has_the_fields_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "evaluation"]) == 0
    definitions = json.loads(capsys.readouterr().out)["$defs"]
    for struct in (Evaluation, MeasuredPlan, MeasuredLoad):
        assert tuple(definitions[struct.__name__]["properties"]) == struct.__struct_fields__
