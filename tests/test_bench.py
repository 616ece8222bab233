"""neuroshard-bench: what it counts, verifies and refuses."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from golden_captures import OPTIONS, write_golden_captures
from neuroshard_fast import _core
from test_engine import problem_arguments, small_networks
from test_engine_reference import engine_arguments, random_case

BENCH = Path(sysconfig.get_path("scripts")) / "neuroshard-bench"


def bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BENCH, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )


def report(*arguments: object) -> dict[str, Any]:
    process = bench(*arguments, "--json")
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    answer: dict[str, Any] = json.loads(process.stdout)
    return answer


def error(*arguments: object, code: int = 1) -> str:
    """The first line of a refusal."""
    process = bench(*arguments)
    assert process.returncode == code
    assert process.stdout == ""
    assert process.stderr.startswith("error: ")
    if code == 1:
        assert process.stderr.count("\n") == 1
    return process.stderr.splitlines()[0]


def write(path: Path, **changes: Any) -> Path:
    """A capture of a small problem."""
    problem = _core.Problem(**problem_arguments(**changes))
    plan = _core.search(small_networks(), problem, **OPTIONS)
    path.write_bytes(_core.write_capture(small_networks(), problem, plan, **OPTIONS))
    return path


@pytest.fixture(scope="module")
def golden_capture(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_golden_captures(tmp_path_factory.mktemp("captures"))


@pytest.mark.parametrize("seed", range(12))
def test_counts_are_those_of_the_written_out_method(seed: int, tmp_path: Path) -> None:
    reference, options = random_case(seed)
    networks, problem = engine_arguments(reference)
    path = tmp_path / "case.capture"
    options["threads"] = 1
    plan = _core.search(networks, problem, **options)
    path.write_bytes(_core.write_capture(networks, problem, plan, **options))
    reference.search(options["beam_width"], options["candidates"], options["max_splits"])
    measured = report(path, "--verify", "--repeat", 1)
    assert measured["distinct_sets"] == len(reference.sets - {()})
    assert measured["distinct_placements"] == len(reference.placements)
    assert measured["distinct_plans"] == len(reference.plans)
    assert measured["plans"] >= measured["distinct_plans"]


def test_every_placement_is_counted_once_for_every_pass(tmp_path: Path) -> None:
    problem = _core.Problem(**problem_arguments())
    path = tmp_path / "case.capture"
    options = OPTIONS | {"max_splits": 0, "grid_steps": 1}
    plan = _core.search(small_networks(), problem, **options)
    path.write_bytes(_core.write_capture(small_networks(), problem, plan, **options))
    # The one pass of the search, and the one that gives its placement.
    assert report(path)["placements"] == 2 * problem.tables


def test_floors_follow_from_counts_and_throughput(tmp_path: Path) -> None:
    path = write(tmp_path / "case.capture")
    measured = report(path, "--repeat", 11)
    # Multiply-adds of small_networks.
    set_network, communication = 5 * 3 + 3 * 1, (4 * 9 + 9 * 2) + (2 * 33 + 33 * 2)
    assert measured["multiply_adds"] == (
        set_network * measured["distinct_sets"] + communication * measured["distinct_plans"]
    )
    arithmetic = 1e3 * measured["multiply_adds"] / measured["multiply_adds_per_second"]
    stepping = 1e3 * 2 * measured["distinct_placements"] / measured["comparisons_per_second"]
    assert measured["arithmetic_floor_ms"] == pytest.approx(arithmetic, rel=1e-4)
    assert measured["stepping_floor_ms"] == pytest.approx(stepping, rel=1e-4)
    assert measured["times_arithmetic_floor"] == pytest.approx(
        measured["median_ms"] / arithmetic, rel=1e-4
    )
    assert measured["times_both_floors"] == pytest.approx(
        measured["median_ms"] / (arithmetic + stepping), rel=1e-4
    )
    assert 0 < measured["min_ms"] <= measured["median_ms"] <= measured["p90_ms"]
    assert measured["p90_ms"] <= measured["p99_ms"] == measured["max_ms"]
    # No processor multiplies less than once, or more than a thousand times, in a nanosecond.
    assert 1e9 < measured["multiply_adds_per_second"] < 1e12


@pytest.mark.parametrize("isa", _core.supported_isas())
@pytest.mark.parametrize("threads", [1, 3])
def test_golden_captures_verify(golden_capture: dict[str, Path], isa: str, threads: int) -> None:
    for size in ("51x4", "195x16"):
        arguments = ("--verify", "--isa", isa, "--threads", threads, "--repeat", 1)
        measured = report(golden_capture[size], *arguments)
        assert measured["verified"] is True
        assert measured["cost_ms"] == measured["captured_cost_ms"]
        assert (measured["isa"], measured["threads"]) == (isa, threads)


def test_planning_a_thousand_tables_takes_little_memory(golden_capture: dict[str, Path]) -> None:
    assert 0 < report(golden_capture["1000x128"], "--repeat", 1)["peak_extra_bytes"] < 200e6


def test_problem_without_a_plan_verifies(tmp_path: Path) -> None:
    path = write(tmp_path / "none.capture", memory_bytes=10)
    measured = report(path, "--verify")
    assert measured["cost_ms"] is None
    assert measured["captured_cost_ms"] is None
    assert "no plan found, as captured" in bench(path, "--verify").stdout


def test_another_plan_than_the_captured_one_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "other.capture"
    problem = _core.Problem(**problem_arguments())
    plan = _core.search(small_networks(), problem, **OPTIONS)
    assert plan is not None

    def refusal(other: _core.Plan | None) -> str:
        path.write_bytes(_core.write_capture(small_networks(), problem, other, **OPTIONS))
        return error(path, "--verify")

    assert "no plan was found then" in refusal(None)
    swapped = _core.evaluate(
        small_networks(), problem, plan.column_splits, [plan.placement[1], plan.placement[0]]
    )
    assert f"{path}: the plan is not the captured one" in refusal(swapped)
    dearest = _core.evaluate(small_networks(), problem, [], [[0, 1, 2, 3], []])
    assert "its cost is" in refusal(dearest)
    assert bench(path).returncode == 0  # without --verify it is only timed


@pytest.mark.parametrize("option", OPTIONS)
def test_captures_name_every_option_in_its_range(option: str) -> None:
    networks, problem = small_networks(), _core.Problem(**problem_arguments())
    others = {name: value for name, value in OPTIONS.items() if name != option}
    with pytest.raises(TypeError):
        _core.write_capture(networks, problem, None, **others)
    with pytest.raises(ValueError, match=f"^{option} must lie between . and .*, got -1$"):
        _core.write_capture(networks, problem, None, **others, **{option: -1})


@pytest.mark.parametrize(
    ("changes", "splits", "placement", "message"),
    [
        ({"tables": 3}, [], [[0, 1, 2], [3]], r"placement\[1\]: shard 3 does not exist"),
        ({"tables": 5}, [], [[0, 1, 2], [3]], "placement: shard 4 is on no device"),
        ({"devices": 3}, [], [[0, 1, 2], [3]], "one list for each of the 3 devices, it has 2"),
        (
            {"dims": np.full(4, 4)},
            [0],
            [[0, 1, 2], [3, 4]],
            r"column_splits\[0\] = 0: a shard of 4",
        ),
        ({"memory_bytes": 479}, [], [[0], [1, 2, 3]], r"placement\[1\]: its shards are larger"),
    ],
    ids=["fewer tables", "more tables", "devices", "splits", "memory"],
)
def test_plans_of_another_problem_are_not_captured(
    changes: dict[str, Any], splits: list[int], placement: list[list[int]], message: str
) -> None:
    plan = _core.evaluate(small_networks(), _core.Problem(**problem_arguments()), splits, placement)
    other = _core.Problem(**problem_arguments(**changes))
    networks = small_networks(other.devices)
    with pytest.raises(ValueError, match=f"^plan does not fit the problem: .*{message}"):
        _core.write_capture(networks, other, plan, **OPTIONS)


def test_text_names_every_figure(tmp_path: Path) -> None:
    text = bench(write(tmp_path / "case.capture"), "--verify", "--threads", 2).stdout
    for word in (
        "4 tables on 2 devices",
        "2 thread(s)",
        "median",
        "p90",
        "p99",
        "distinct",
        "arithmetic floor",
        "stepping floor",
        "peak extra memory",
        "as captured",
    ):
        assert word in text


def test_awkward_file_names_stay_json(tmp_path: Path) -> None:
    path = write(tmp_path / 'a "quoted"\\\n\té.capture')
    assert report(path)["capture"] == str(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "which capture file"),
        (["a", "b"], "one capture file at a time, 'b' is another"),
        (["a", "--fast"], "unknown option '--fast'"),
        (["a", "--threads"], "--threads takes a value"),
        (["a", "--threads", "0"], "--threads takes a whole number between 1 and 1024, got '0'"),
        (["a", "--repeat", "2x"], "--repeat takes a whole number"),
        (["a", "--isa", "sparc"], "isa: 'sparc' cannot run here"),
    ],
)
def test_usage_errors(arguments: list[str], message: str) -> None:
    assert message in error(*arguments, code=2)


def test_help_is_no_error() -> None:
    process = bench("--help")
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.startswith("usage: neuroshard-bench CAPTURE")


def test_unreadable_captures_are_refused(tmp_path: Path) -> None:
    sound = write(tmp_path / "sound.capture").read_bytes()
    flipped = bytearray(sound)
    flipped[len(sound) // 2] ^= 1
    cases = {
        "empty": (b"", "not a capture file"),
        "other": (b"PK" + sound, "not a capture file"),
        "short": (sound[:-1], "cut short or damaged"),
        "header": (sound[:20], "cut short or damaged"),
        "long": (sound + b"\0", "cut short or damaged"),
        "flipped": (bytes(flipped), "cut short or damaged"),
        "future": (sound[:8] + b"\x63" + sound[9:], "of version 99"),
    }
    for name, (content, message) in cases.items():
        path = tmp_path / name
        path.write_bytes(content)
        assert error(path).startswith(f"error: {path}: ")
        assert message in error(path)
    assert error(tmp_path / "missing") == f"error: {tmp_path}/missing: no such file"
    assert error(tmp_path) == f"error: {tmp_path}: not a file"
