"""Profiling: cost data that is measured here, continued after an interruption, and read back."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from neuroshard_fast.cli.main import main
from neuroshard_fast.cost_data import CostDataInfo, read_communication, read_compute
from neuroshard_fast.errors import InputError, MissingDependencyError
from neuroshard_fast.memory import shard_memory
from neuroshard_fast.profile.communication import profile_communication
from neuroshard_fast.profile.log import WRITE_EVERY, Measured, MeasurementLog, fill
from neuroshard_fast.profile.lookups import LookupCache, join
from neuroshard_fast.profile.sampling import (
    AUGMENTED_DIMS,
    ComputeSampler,
    augment,
    draw_all_to_all,
)
from neuroshard_fast.published import read_communication_samples, write_communication_samples
from neuroshard_fast.tables import EmbeddingTable, Feature, TableSet

pytest.importorskip("torch")
pytest.importorskip("fbgemm_gpu")


def table(name: str, rows: int = 500, dim: int = 8, factor: float = 3.0) -> EmbeddingTable:
    return EmbeddingTable(
        name=name,
        num_embeddings=rows,
        embedding_dim=dim,
        features=(Feature(name=name, pooling_factor=factor),),
    )


POOL = TableSet.of([table("a"), table("b", rows=2000), table("c", rows=30, factor=8.0)])

INFO = CostDataInfo(
    source="measured",
    backend="fbgemm",
    hardware="a processor",
    batch_size=16,
    seed=7,
    warmup=1,
    iterations=1,
    rounds=3,
    versions={"torch": "2"},
    date="2024-01-01",
)


# --- sampling ---


def test_every_table_is_drawn_with_every_dimension() -> None:
    augmented = augment(POOL)
    assert [x.embedding_dim for x in augmented] == list(AUGMENTED_DIMS) * len(POOL)
    assert {x.name for x in augmented} == {"a", "b", "c"}


def test_compute_samples_are_sets_of_1_to_15_tables_that_fit() -> None:
    tables = augment(TableSet.of([table(str(k), rows=1000 * (k + 1)) for k in range(20)]))
    sizes = [shard_memory(x).of_width(x.embedding_dim) for x in tables]
    cap = 2 * max(sizes)
    sampler = ComputeSampler(tables, cap, seed=3)
    samples = [sampler.draw(k) for k in range(400)]
    assert {len(sample) for sample in samples} == set(range(1, 16))
    assert all(len(set(sample)) == len(sample) for sample in samples)
    assert max(sum(sizes[k] for k in sample) for sample in samples) <= cap
    assert samples == [ComputeSampler(tables, cap, seed=3).draw(k) for k in range(400)]
    assert samples != [ComputeSampler(tables, cap, seed=4).draw(k) for k in range(400)]


def test_dims_go_on_until_they_reach_the_largest_of_the_pool() -> None:
    wide = TableSet.of([table("a", dim=8), table("b", dim=300)])
    dims = [*AUGMENTED_DIMS, 256, 512]
    assert [x.embedding_dim for x in augment(wide)] == dims * 2


def test_no_table_fits_the_sample() -> None:
    with pytest.raises(InputError, match="none fits a sample of 10 bytes"):
        ComputeSampler(augment(POOL), 10, seed=0)


@pytest.mark.parametrize("devices", [2, 4, 8, 128])
def test_all_to_alls_have_every_imbalance_and_start_at_zero(devices: int) -> None:
    samples = [draw_all_to_all(devices, 0, k) for k in range(200)]
    assert all(len(x.dims) == len(x.starts_ms) == devices for x in samples)
    assert all(min(x.starts_ms) == 0 and max(x.starts_ms) < 19 for x in samples)
    most_tables = 59 * max(1, devices // 4)
    assert all(4 <= sum(x.dims) <= max(128 * most_tables, 256 * 16 * devices) for x in samples)
    spread = [max(x.dims) / np.mean(x.dims) for x in samples]
    assert min(spread) < 1.2
    assert max(spread) > 1.4
    assert samples[5] == draw_all_to_all(devices, 0, 5)


@pytest.mark.parametrize("devices", [8, 32])
def test_half_of_the_all_to_alls_are_like_finished_plans(devices: int) -> None:
    samples = [draw_all_to_all(devices, 0, k) for k in range(400)]
    near = [x for x in samples if max(x.starts_ms) < 2]
    assert 190 <= len(near) <= 260  # of the others about a sixteenth start so close together
    assert any(max(x.starts_ms) < 0.05 for x in near)
    assert any(max(x.starts_ms) > 1 for x in near)
    many = [x for x in near if sum(x.dims) > 500 * devices]
    assert np.median([max(x.dims) / np.mean(x.dims) for x in many]) < 1.15


def test_starts_are_continuous_and_written_as_they_were_measured(tmp_path: Path) -> None:
    samples = [draw_all_to_all(4, 0, k) for k in range(50)]
    assert all(any(start % 1 for start in x.starts_ms) for x in samples)
    costs = (1.0, 1.0, 1.0, 1.0)
    write_communication_samples(
        tmp_path / "data.txt", [(x.dims, x.starts_ms, costs, costs) for x in samples]
    )
    dims, starts, _, _ = read_communication_samples(tmp_path / "data.txt")
    assert starts.tolist() == [list(x.starts_ms) for x in samples]
    assert dims.tolist() == [list(x.dims) for x in samples]


def test_all_to_alls_drawn_by_an_earlier_version_are_not_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile_communication(tmp_path, devices=4, samples=3, batch_size=1024, hardware="h100")
    info = tmp_path / "comm_4/info.json"
    before = msgspec.json.decode(info.read_bytes())
    assert before.pop("sampling") == 3
    info.write_bytes(msgspec.json.encode(before))
    with pytest.raises(InputError, match="holds data with sampling 1, not 3; continue with the"):
        profile_communication(tmp_path, devices=4, samples=3, batch_size=1024, hardware="h100")


def test_a_table_has_the_same_lookups_at_every_width() -> None:
    cache = LookupCache(batch_size=64)
    wide, narrow = table("x", dim=128), table("y", dim=4)
    assert cache.of_table(wide) is cache.of_table(narrow)
    again = LookupCache(batch_size=64).of_table(wide)
    assert np.array_equal(again.indices, cache.of_table(wide).indices)


def test_lookups_that_were_dropped_are_drawn_again_the_same() -> None:
    tables = [table(str(k), rows=100 + k) for k in range(3)]
    one = LookupCache(batch_size=64).of_table(tables[0]).num_bytes
    cache = LookupCache(batch_size=64, cache_bytes=2 * one)
    first, second = cache.of_table(tables[0]), cache.of_table(tables[1])
    assert cache.of_table(tables[0]) is first
    cache.of_table(tables[2])
    assert cache.of_table(tables[0]) is first
    again = cache.of_table(tables[1])
    assert again is not second
    assert np.array_equal(again.indices, second.indices)
    small = LookupCache(batch_size=64, cache_bytes=1)
    assert np.array_equal(small.of_table(tables[0]).indices, first.indices)


def test_lookups_of_several_features_and_tables_join_to_bags() -> None:
    two = msgspec.structs.replace(
        table("two"),
        features=(Feature(name="p", pooling_factor=2.5), Feature(name="q", pooling_factor=0.5)),
    )
    cache = LookupCache(batch_size=10)
    indices, offsets = join([cache.of_table(two), cache.of_table(table("one", rows=40))])
    lengths = np.diff(offsets).reshape(3, 10)
    assert lengths.sum(axis=1).tolist() == [25, 5, 30]
    assert set(lengths[0]) == {2, 3}
    assert offsets[0] == 0
    assert offsets[-1] == indices.size == 60
    assert indices[30:].max() < 40


# --- the log ---


def run_log(
    folder: Path, samples: int, *, rounds: int = 3, stop_after: int | None = None
) -> list[int]:
    """Fill a log with costs that depend on the sample and the round; returns what was measured."""
    measured: list[int] = []
    written: list[Measured] = []
    log = MeasurementLog(folder, msgspec.structs.replace(INFO, rounds=rounds), {})

    def measure(sample: int) -> Measured:
        if len(measured) == stop_after:
            raise KeyboardInterrupt
        measured.append(sample)
        return [[sample + 1.0 + 0.1 * len(log.rounds.get(sample, ()))]]

    def write(data: list[Measured]) -> None:
        written[:] = data
        (folder / "data.txt").write_text("".join(f"{x[0][0]:.6f}\n" for x in data))

    try:
        fill(log, samples, measure, write, "samples")
    finally:
        log.close()
    return measured


def test_an_interrupted_log_goes_on_and_loses_nothing(tmp_path: Path) -> None:
    samples = 85
    whole = run_log(tmp_path / "whole", samples)
    one_round = [*range(samples), 0, 20, 40, 60, 80]
    assert whole == one_round * 3
    for stops in ([1, 100, 3], [WRITE_EVERY, 10], [len(whole) - 1]):
        folder = tmp_path / str(stops)
        measured: list[int] = []
        for stop in stops:
            with pytest.raises(KeyboardInterrupt):
                run_log(folder, samples, stop_after=stop)
            measured += whole[len(measured) : len(measured) + stop]
            with (folder / "rounds.txt").open("a") as file:
                file.write("17 3.1")  # cut off in writing
        assert measured + run_log(folder, samples) == whole
        for name in ("data.txt", "repeats.txt", "rounds.txt"):
            assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_finished_log_can_be_extended(tmp_path: Path) -> None:
    run_log(tmp_path, 70)
    assert run_log(tmp_path, 70) == []
    assert run_log(tmp_path, 82) == [*range(70, 82), 80] * 3
    assert len((tmp_path / "data.txt").read_text().splitlines()) == 82
    assert run_log(tmp_path, 82, rounds=4) == [*range(82), 0, 20, 40, 60, 80]
    assert run_log(tmp_path, 10, rounds=4) == []
    assert len((tmp_path / "data.txt").read_text().splitlines()) == 82


def test_costs_are_medians_of_the_rounds_so_far(tmp_path: Path) -> None:
    log = MeasurementLog(tmp_path, INFO, {})
    for cost in (4.0, 1.0, 2.5):
        log.add(1, [[cost]])
    assert log.costs() == []  # there is no sample 0
    for cost in (10.0, 30.0, 14.0, 32.0, 11.0, 31.0):  # a sample that is measured twice in a round
        log.add(0, [[cost]])
    log.add(2, [[7.0]])
    assert log.costs() == [[[11.0]], [[2.5]], [[7.0]]]
    log.write_repeats()
    assert (tmp_path / "repeats.txt").read_text() == "0 31.000000\n"
    log.close()


@pytest.mark.parametrize(
    ("field", "value"), [("seed", 8), ("batch_size", 32), ("hardware", "another"), ("rounds", 1)]
)
def test_data_made_otherwise_is_not_continued(tmp_path: Path, field: str, value: object) -> None:
    MeasurementLog(tmp_path, INFO, {}).close()
    MeasurementLog(tmp_path, msgspec.structs.replace(INFO, date="2025-01-01"), {}).close()
    with pytest.raises(InputError, match=f"holds data with {field} .*, not "):
        MeasurementLog(tmp_path, msgspec.structs.replace(INFO, **{field: value}), {})


@pytest.mark.parametrize("wanted", [(3, 40), (2, 41), (1, 10)])
def test_a_log_knows_how_much_is_done(tmp_path: Path, wanted: tuple[int, int]) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_log(tmp_path, 40, rounds=1, stop_after=30)
    rounds, samples = wanted
    log = MeasurementLog(tmp_path, msgspec.structs.replace(INFO, rounds=rounds), {})
    schedule = list(log.schedule(samples))
    missing = [1 for k, count in schedule if len(log.rounds.get(k, ())) < count]
    assert log.done_and_total(samples) == (len(schedule) - len(missing), len(schedule))
    log.close()


def test_data_of_other_tables_is_not_continued(tmp_path: Path) -> None:
    MeasurementLog(tmp_path, INFO, {"table_configs.json": b"[1]"}).close()
    with pytest.raises(InputError, match=r"table_configs\.json: differs from the tables given"):
        MeasurementLog(tmp_path, INFO, {"table_configs.json": b"[2]"})


def test_published_data_is_not_written_over(tmp_path: Path, golden: Path) -> None:
    folder = shutil.copytree(golden / "cost_data/compute", tmp_path / "data")
    with pytest.raises(InputError, match=r"holds data\.txt without info\.json"):
        MeasurementLog(folder, INFO, {})


def test_two_processes_do_not_measure_into_one_folder(tmp_path: Path) -> None:
    log = MeasurementLog(tmp_path, INFO, {})
    before = (tmp_path / "info.json").read_bytes()
    for rounds in (INFO.rounds, INFO.rounds + 1):
        with pytest.raises(InputError, match="another process is measuring"):
            MeasurementLog(tmp_path, msgspec.structs.replace(INFO, rounds=rounds), {})
    assert (tmp_path / "info.json").read_bytes() == before
    log.close()


def test_a_log_is_shared_with_processes_that_its_own_starts_and_no_others(tmp_path: Path) -> None:
    parent = MeasurementLog(tmp_path, INFO, {})
    with pytest.raises(InputError, match="another process is measuring"):
        MeasurementLog(tmp_path, INFO, {}, is_shared=True)
    parent.share()
    child = MeasurementLog(tmp_path, INFO, {}, is_shared=True)
    for open_log in (parent, child):
        with pytest.raises(InputError, match="another process is measuring"):
            MeasurementLog(tmp_path, INFO, {})
        open_log.close()
    MeasurementLog(tmp_path, INFO, {}).close()


@pytest.mark.parametrize(
    "line",
    [
        "zero 1.5",
        "1",
        "1 nan",
        "1 inf",
        "1 -0.5",
        "1 1.5,2.5",
        "1 1.5 2.5",
        "-1 1.5",
        "",
        "1.5 1.5",
    ],
)
def test_a_malformed_log_is_named(tmp_path: Path, line: str) -> None:
    MeasurementLog(tmp_path, INFO, {}).close()
    (tmp_path / "rounds.txt").write_text(f"0 1.5\n{line}\n")
    with pytest.raises(InputError, match=rf"rounds\.txt: line 2: '{line}' is not a round"):
        MeasurementLog(tmp_path, INFO, {})


def test_rounds_of_other_device_counts_are_refused(tmp_path: Path) -> None:
    info = msgspec.structs.replace(INFO, backend="gloo", world_size=2)
    log = MeasurementLog(tmp_path, info, {})
    log.add(0, [[1.0, 2.0], [3.0, 4.0]])
    log.close()
    MeasurementLog(tmp_path, info, {}).close()
    with (tmp_path / "rounds.txt").open("a") as file:
        file.write("1 1.0,2.0,3.0 1.0,2.0,3.0\n")
    with pytest.raises(InputError, match=r"rounds\.txt: line 2: .* is not a round"):
        MeasurementLog(tmp_path, info, {})


# --- reading ---


def test_published_cost_data_is_read_as_it_is(golden: Path) -> None:
    compute = read_compute(golden / "cost_data/compute")
    assert len(compute.tables) == 5136
    first = compute.tables[0]
    assert (first.embedding_dim, first.pooling_factor, first.num_embeddings) == (
        128,
        1.0213,
        215521,
    )
    assert len(compute.samples) == len(compute.costs) == 4000
    assert compute.samples[2] == (119, 3958, 3871)
    assert compute.costs[2] == 0.418608
    assert compute.info is None
    assert compute.noise_floor is None
    communication = read_communication(golden / "cost_data/comm_4")
    assert communication.dims.shape == communication.backward.shape == (2000, 4)
    assert communication.starts[1].tolist() == [4, 5, 1, 0]
    assert communication.forward[1].tolist() == [1.23416, 0.33652, 3.93770, 4.84773]
    assert communication.noise_floor_forward is None


def test_noise_floor_compares_each_measurement_with_the_others(
    tmp_path: Path, golden: Path
) -> None:
    folder = shutil.copytree(golden / "cost_data/comm_4", tmp_path / "comm_4")
    line = (folder / "data.txt").read_text().splitlines()[0].split()
    double = ",".join(str(2 * float(x)) for x in line[2].split(","))
    (folder / "repeats.txt").write_text(f"0 {double} {line[3]}\n")
    data = read_communication(folder)
    # x against 2x is 0.5 off, 2x against x is 1 off
    assert data.noise_floor_forward == pytest.approx(0.75)
    assert data.noise_floor_backward == 0.0


@pytest.mark.parametrize(
    "line", ["0", "0 nonsense", "4000 1.0", "-1 1.0", "0 1.0 2.0", "0 1,2", "0 nan", "0 0", "x 1"]
)
def test_malformed_repeats_are_named(tmp_path: Path, golden: Path, line: str) -> None:
    folder = shutil.copytree(golden / "cost_data/compute", tmp_path / "compute")
    (folder / "repeats.txt").write_text(line + "\n")
    with pytest.raises(InputError, match=r"repeats\.txt"):
        read_compute(folder)


def test_missing_or_malformed_info(tmp_path: Path, golden: Path) -> None:
    with pytest.raises(InputError, match=r"table_configs\.json: cannot be read"):
        read_compute(tmp_path / "nowhere")
    folder = shutil.copytree(golden / "cost_data/compute", tmp_path / "compute")
    (folder / "info.json").write_text('{"schema": "neuroshard/cost-data/1", "source": "guessed"}')
    with pytest.raises(InputError, match=r"info\.json: source"):
        read_compute(folder)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("hardware", "", "hardware must be a non-empty string"),
        ("hardware", "two\nlines", "hardware must be a non-empty string"),
        ("batch_size", 0, "batch_size must lie between 1"),
        ("seed", -1, "seed must lie between 0"),
        ("iterations", 0, "iterations must lie between 1"),
        ("rounds", 0, "rounds must lie between 1"),
        ("world_size", 1, "world_size must lie between 2"),
        ("memory_bytes", 0, "memory_bytes must lie between 1"),
        ("versions", {"torch": ""}, "versions: torch must be a non-empty string"),
        ("source", "simulated", "contradict each other"),
        ("date", "", "date must be a non-empty string"),
    ],
)
def test_impossible_info_is_refused(
    tmp_path: Path, golden: Path, field: str, value: object, message: str
) -> None:
    folder = shutil.copytree(golden / "cost_data/compute", tmp_path / "compute")
    info = {name: getattr(INFO, name) for name in INFO.__struct_fields__}
    (folder / "info.json").write_bytes(msgspec.json.encode({**info, field: value}))
    with pytest.raises(InputError, match=rf"info\.json: .*{message}"):
        read_compute(folder)


# --- backends ---


def test_fbgemm_step_updates_the_rows_looked_up_and_no_others() -> None:
    from neuroshard_fast.profile.fbgemm import FbgemmCompute

    backend = FbgemmCompute(batch_size=4)
    tables = [table("a", rows=50, factor=1.0), table("b", rows=20, dim=4, factor=2.0)]
    step = backend.prepare(tables)
    weights = next(iter(backend._arenas.values()))
    before = weights.clone()
    step()
    changed = (weights != before).numpy()
    for rows, dim, part, start in ((50, 8, tables[0], 0), (20, 4, tables[1], 400)):
        rows_changed = changed[start : start + rows * dim].reshape(rows, dim).all(axis=1)
        looked_up = LookupCache(4).of_table(part).indices
        assert set(np.flatnonzero(rows_changed)) == set(looked_up)


def kinds() -> list[EmbeddingTable]:
    """A table of every kind that trains on a CPU."""
    base = table("t", rows=100)
    replace = msgspec.structs.replace
    features = (Feature(name="p", pooling_factor=2.0), Feature(name="q", pooling_factor=0.5))
    return [
        base,
        replace(base, name="mean", pooling="mean"),
        replace(base, name="sequence", pooling="none"),
        replace(base, name="weighted", is_weighted=True),
        replace(base, name="shared", features=features),
        replace(base, name="adagrad", optimizer="adagrad"),
        replace(base, name="rowwise", optimizer="rowwise_adagrad"),
        replace(base, name="idle", features=(Feature(name="p", pooling_factor=0.0),)),
    ]


@pytest.mark.parametrize("name", ["fbgemm", "embedding-bag"])
def test_backends_measure_every_kind_of_table(name: str) -> None:
    from neuroshard_fast.profile.backends import choose_compute_backend, compute_backend

    backend = compute_backend(choose_compute_backend(name), 16, iterations=2)
    assert backend.measure([]) == 0.0
    for each in kinds():
        assert 0 < backend.measure([each]) < 1000
    assert backend.measure(kinds()) > 0


def test_fbgemm_measures_half_precision() -> None:
    from neuroshard_fast.profile.fbgemm import FbgemmCompute

    half = msgspec.structs.replace(table("half"), data_type="fp16", output_dtype="fp16")
    assert FbgemmCompute(batch_size=16, iterations=2).measure([half, table("full")]) > 0


def test_fbgemm_keeps_an_arena_for_each_type_in_use() -> None:
    from neuroshard_fast.profile.fbgemm import FbgemmCompute
    from neuroshard_fast.profile.host_memory import needed_bytes

    replace = msgspec.structs.replace
    half = replace(table("half", rows=100), data_type="fp16", output_dtype="fp16")
    adagrad = replace(table("adagrad", rows=200), optimizer="adagrad")
    rowwise = replace(table("rowwise", rows=400), optimizer="rowwise_adagrad")
    sets = [[half, half], [adagrad, rowwise], [rowwise]]
    backend = FbgemmCompute(4, sets, iterations=1)

    def elements() -> dict[tuple[str, str], int]:
        return {arena: memory.numel() for arena, memory in backend._arenas.items()}

    expected = {
        ("weights", "fp16"): 2 * 100 * 8,
        ("weights", "fp32"): (200 + 400) * 8,
        ("state", "fp32"): 200 * 8 + 400,
    }
    assert elements() == expected
    assert needed_bytes("fbgemm", sets) == 2 * 1600 + 4 * 4800 + 4 * 2000
    assert needed_bytes("embedding-bag", sets) == 200 * 8 * 8 + 400 * 36
    for tables in sets:
        assert backend.measure(tables) > 0
    assert elements() == expected
    assert backend.measure([adagrad, adagrad, rowwise]) > 0  # more than was set aside
    assert elements() == {
        **expected,
        ("weights", "fp32"): 800 * 8,
        ("state", "fp32"): 400 * 8 + 400,
    }


def test_fbgemm_that_does_not_load_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from neuroshard_fast.profile.backends import choose_compute_backend

    monkeypatch.setitem(sys.modules, "neuroshard_fast.profile.fbgemm", None)
    for wanted in ("auto", "fbgemm"):
        with pytest.raises(MissingDependencyError, match="fbgemm_gpu is installed but does not"):
            choose_compute_backend(wanted)
    assert choose_compute_backend("embedding-bag") == "embedding-bag"


def test_a_gpu_without_memory_left_is_named() -> None:
    import torch

    from neuroshard_fast.profile.timing import out_of_memory_named

    refused = pytest.raises(InputError, match="more memory than this GPU has left")
    with refused, out_of_memory_named():
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")


def test_more_devices_than_gpus_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    from neuroshard_fast.profile import distributed

    monkeypatch.setattr(distributed, "communication_backend", lambda: "nccl")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert main(comm_arguments(tmp_path, 1)) == 2
    assert "2 devices wanted, but this machine has 1 GPUs" in capsys.readouterr().err


def test_a_measuring_process_ends_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    from neuroshard_fast.profile.distributed import run_worker

    def work() -> None:
        raise InputError("too wide")

    with pytest.raises(SystemExit, match="2"):
        run_worker(work)
    assert capsys.readouterr().err == "error: too wide\n"


@pytest.mark.parametrize(
    ("backend", "changes", "message"),
    [
        ("fbgemm", {"data_type": "int8"}, "fbgemm does not train data_type int8"),
        ("fbgemm", {"optimizer": "adam"}, "fbgemm does not train optimizer adam"),
        ("fbgemm", {"output_dtype": "bf16"}, "fbgemm does not train output_dtype bf16"),
        ("embedding-bag", {"data_type": "fp16"}, "embedding-bag does not train data_type fp16"),
        (
            "embedding-bag",
            {"is_weighted": True, "pooling": "mean"},
            "embedding-bag has no weighted mean",
        ),
        (
            "embedding-bag",
            {"is_weighted": True, "pooling": "none"},
            "embedding-bag has no weighted sequence",
        ),
    ],
)
def test_tables_that_a_cpu_does_not_train_are_refused_before_measuring(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    changes: dict[str, object],
    message: str,
) -> None:
    import torch

    from neuroshard_fast.profile.compute import profile_compute

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    pool = TableSet.of([table("a"), msgspec.structs.replace(table("t"), **changes)])
    with pytest.raises(InputError, match=f"table 't': {message}"):
        profile_compute(
            pool, tmp_path, samples=1, batch_size=16, memory_bytes=2**20, backend=backend
        )
    assert not list(tmp_path.iterdir())


# --- the command ---


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    path = tmp_path / "pool.json"
    POOL.save(path)
    return path


def compute_arguments(pool: Path, data: Path, samples: int) -> list[str]:
    arguments = ["profile", "compute", str(pool), "-o", str(data), "--batch-size", "16"]
    arguments += ["--memory", "2MiB", "--seed", "5", "--rounds", "1"]
    return [*arguments, "--samples", str(samples)]


def comm_arguments(data: Path, samples: int, *more: str) -> list[str]:
    arguments = ["profile", "comm", "--devices", "2", "-o", str(data), "--batch-size", "16"]
    return [*arguments, "--samples", str(samples), "--rounds", "1", *more]


def kill_half_way(arguments: list[str], log: Path, lines: int) -> list[str]:
    """Run the command until its log has so many lines, kill it, and return them."""
    process = subprocess.Popen(
        [sys.executable, "-m", "neuroshard_fast.cli.main", *arguments], stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while not log.exists() or log.read_text().count("\n") < lines:
        assert process.poll() is None, "the command ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return log.read_text().splitlines(keepends=True)


def is_locked(log: Path) -> bool:
    with log.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_compute_is_measured_killed_and_continued(pool: Path, tmp_path: Path) -> None:
    data, samples = tmp_path / "data", 42
    log = data / "compute/rounds.txt"
    kept = kill_half_way(compute_arguments(pool, data, samples), log, 25)
    kept = [line for line in kept if line.endswith("\n")]
    assert main(compute_arguments(pool, data, samples)) == 0
    assert log.read_text().startswith("".join(kept))
    result = read_compute(data / "compute")
    sampler = ComputeSampler(augment(POOL), 2 * 2**20, seed=5)
    assert result.samples == [sampler.draw(k) for k in range(samples)]
    assert (result.costs > 0).all()
    assert result.noise_floor is not None
    assert 0 <= result.noise_floor < 5
    assert len(result.tables) == len(POOL) * 6
    info = result.info
    assert info is not None
    assert (info.source, info.backend, info.batch_size) == ("measured", "fbgemm", 16)
    assert info.rounds == 1
    assert "torch" in info.versions
    assert info.hardware


def test_more_rounds_of_fewer_samples_are_taken_of_all_that_there_are(
    pool: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    assert main(compute_arguments(pool, data, 4)) == 0
    before = read_compute(data / "compute")
    assert main([*compute_arguments(pool, data, 2), "--rounds", "2"]) == 0
    after = read_compute(data / "compute")
    assert after.samples == before.samples
    assert (after.costs != before.costs).any()
    assert after.info is not None
    assert after.info.rounds == 2
    lines = (data / "compute/rounds.txt").read_text().splitlines()
    assert [int(line.split()[0]) for line in lines] == [0, 1, 2, 3, 0] * 2


def test_more_rounds_of_fewer_all_to_alls_are_taken_of_all_that_there_are(tmp_path: Path) -> None:
    assert main(comm_arguments(tmp_path, 3)) == 0
    assert main(comm_arguments(tmp_path, 1, "--rounds", "2")) == 0
    assert len(read_communication(tmp_path / "comm_2").dims) == 3
    lines = (tmp_path / "comm_2/rounds.txt").read_text().splitlines()
    assert [int(line.split()[0]) for line in lines] == [0, 1, 2, 0] * 2


def test_tables_larger_than_this_machine_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = tmp_path / "pool.json"
    TableSet.of([table("huge", rows=2**36)]).save(pool)
    arguments = compute_arguments(pool, tmp_path / "data", 2)
    assert main([*arguments, "--memory", "4096TiB"]) == 2
    assert "more memory than is available" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_other_settings_exit_with_an_error(
    pool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    assert main(compute_arguments(pool, data, 1)) == 0
    assert main([*compute_arguments(pool, data, 1), "--seed", "6"]) == 2
    assert "holds data with seed 5, not 6" in capsys.readouterr().err


def test_all_to_alls_are_measured_killed_and_continued(tmp_path: Path) -> None:
    log = tmp_path / "comm_2/rounds.txt"
    kept = kill_half_way(comm_arguments(tmp_path, 40), log, 3)
    # The measuring processes end with the one that was killed.
    deadline = time.monotonic() + 60
    while is_locked(log):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    samples = len(log.read_text().splitlines()) + 3
    assert main(comm_arguments(tmp_path, samples)) == 0
    assert log.read_text().startswith("".join(line for line in kept if line.endswith("\n")))
    data = read_communication(log.parent)
    drawn = [draw_all_to_all(2, 0, k) for k in range(samples)]
    assert data.dims.tolist() == [list(x.dims) for x in drawn]
    assert data.starts.tolist() == [list(x.starts_ms) for x in drawn]
    assert (data.backward > 0).all()
    # The forward all-to-all of a device waits for the one that starts last.
    waits = data.starts.max(axis=1, keepdims=True) - data.starts
    assert (data.forward >= waits).all()
    assert (data.forward <= waits + data.backward.max() + 500).all()
    assert data.info is not None
    assert (data.info.backend, data.info.world_size) == ("gloo", 2)


def test_a_folder_that_is_being_measured_into_is_refused_before_any_process_starts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "comm_2/rounds.txt"
    log.parent.mkdir()
    with log.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert main(comm_arguments(tmp_path, 1)) == 2
    assert capfd.readouterr().err == f"error: {log}: another process is measuring into it\n"
    log.write_text("nonsense\n")
    assert main(comm_arguments(tmp_path, 1)) == 2
    error = capfd.readouterr().err
    assert error.startswith(f"error: {log}: line 1: 'nonsense' is not a round")
    assert error.count("\n") == 1


def test_what_was_measured_is_said_at_the_end(
    pool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(compute_arguments(pool, tmp_path, 2)) == 0
    data = read_compute(tmp_path / "compute")
    assert data.info is not None
    assert capsys.readouterr().out == (
        f"{tmp_path / 'compute'}: 2 sets of tables; measured on {data.info.hardware}, 1 rounds each; "
        f"noise floor {data.noise_floor:.2%}\n"
    )
    assert main(comm_arguments(tmp_path, 3)) == 0
    comm = read_communication(tmp_path / "comm_2")
    assert capsys.readouterr().out == (
        f"{tmp_path / 'comm_2'}: 3 all-to-alls; measured on {data.info.hardware}, 1 rounds each; "
        f"noise floor of forward costs {comm.noise_floor_forward:.2%}; "
        f"noise floor of backward costs {comm.noise_floor_backward:.2%}\n"
    )


def test_samples_are_bounded_and_their_drawing_shows(
    pool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (
        compute_arguments(pool, tmp_path, 10**6 + 1),
        comm_arguments(tmp_path, 10**9),
    ):
        assert main(arguments) == 2
        assert "samples must lie between 1 and 1000000" in capsys.readouterr().err
    assert main(compute_arguments(pool, tmp_path, 2)) == 0
    assert "sets of tables drawn: 100%" in capsys.readouterr().err


def test_batches_larger_than_this_machine_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool, data = tmp_path / "pool.json", tmp_path / "data"
    TableSet.of([table("busy", factor=1e6)]).save(pool)
    assert main([*compute_arguments(pool, data, 2), "--batch-size", str(2**31)]) == 2
    assert "more memory than is available here; scale" in capsys.readouterr().err
    assert not data.exists()


def test_simulated_data_is_marked(
    pool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulated = ["--backend", "simulated", "--hardware", "h100"]
    assert main([*compute_arguments(pool, tmp_path, 30), *simulated]) == 0
    assert main([*comm_arguments(tmp_path, 30), *simulated]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{tmp_path / 'compute'}: 30 sets of tables; SIMULATED H100")
    assert second.startswith(f"{tmp_path / 'comm_2'}: 30 all-to-alls; SIMULATED H100")
    assert "noise floor" not in first + second
    compute, comm = read_compute(tmp_path / "compute"), read_communication(tmp_path / "comm_2")
    assert len(compute.costs) == len(comm.dims) == 30
    for data in (compute, comm):
        assert data.info is not None
        assert (data.info.source, data.info.backend) == ("simulated", "simulated")
        assert "H100" in data.info.hardware


def test_held_out_tables_have_a_folder_of_their_own(pool: Path, tmp_path: Path) -> None:
    simulated = ["--backend", "simulated", "--hardware", "a100", "--held-out"]
    assert main([*compute_arguments(pool, tmp_path, 3), *simulated]) == 0
    assert len(read_compute(tmp_path / "compute_heldout").costs) == 3


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--backend", "simulated"], "--backend simulated and --hardware go together"),
        (["--hardware", "a100"], "--backend simulated and --hardware go together"),
        (["--backend", "simulated", "--hardware", "z80"], "z80"),
        (["--samples", "0"], "samples must lie between 1"),
        (["--batch-size", "-1"], "batch_size must lie between 1"),
        (["--seed", "-1"], "seed must lie between 0"),
        (["--rounds", "0"], "rounds must lie between 1"),
        (["--memory", "much"], "memory size 'much'"),
        (["--memory", "1B"], "none fits a sample of 1 bytes"),
        (["-o", os.devnull + "/data"], "cannot be made"),
    ],
)
def test_unusable_arguments(
    pool: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    extra: list[str],
    message: str,
) -> None:
    assert main([*compute_arguments(pool, tmp_path / "data", 2), *extra]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "data/compute/data.txt").exists()


def test_one_device_has_nobody_to_exchange_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*comm_arguments(tmp_path, 2), "--devices", "1"]) == 2
    assert "devices must lie between 2" in capsys.readouterr().err
