"""Cost data of several batch sizes and data types, and of proposed plans, is trained on together."""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path

import numpy as np
import pytest

from neuroshard_fast import Cluster, CostModels, InputError, Planner, config
from neuroshard_fast.cli.main import main
from neuroshard_fast.cost_data import cost_data_folders, labelled, read_compute
from neuroshard_fast.pretrain import PretrainOptions, pretrain
from neuroshard_fast.pretrain.card import render_card
from neuroshard_fast.profile.compute import profile_compute
from neuroshard_fast.tables import EmbeddingTable, Feature, TableSet
from test_pretrain import QUICK, golden_data, small_data, write_info  # noqa: F401 (fixtures)

pytest.importorskip("torch")


@pytest.fixture
def conditions(small_data: Path) -> Path:  # noqa: F811
    """Two batch sizes and data types of lookups, two batch sizes of all-to-alls."""
    write_info(small_data / "compute", data_type="fp32", optimizer="sgd")
    write_info(small_data / "comm_4", backend="gloo", world_size=4)
    for part, copy, fields in (
        ("compute", "compute-512_fp16", {"data_type": "fp16", "optimizer": "adagrad"}),
        ("comm_4", "comm_4-512", {"backend": "gloo", "world_size": 4}),
    ):
        shutil.copytree(small_data / part, small_data / copy)
        write_info(small_data / copy, batch_size=512, **fields)
    return small_data


def test_folders_of_all_conditions_are_found(conditions: Path) -> None:
    for name in ("compute_heldout-x", "comm_16", "comm_2-a", "compute-", "comm_02", "other"):
        (conditions / name).mkdir()
    found = cost_data_folders(conditions)
    assert [path.name for path in found.compute] == ["compute", "compute-512_fp16"]
    assert [path.name for path in found.held_out] == ["compute_heldout-x"]
    assert {
        count: [path.name for path in paths] for count, paths in found.communication.items()
    } == {
        2: ["comm_2-a"],
        4: ["comm_4", "comm_4-512"],
        16: ["comm_16"],
    }
    assert list(found.communication) == [2, 4, 16]


@pytest.mark.parametrize("label", ["a b", "-", "../x", ".x", "x" * 65, "ä"])
def test_labels_are_plain(label: str) -> None:
    with pytest.raises(InputError, match="label must be 1 to 64 letters"):
        labelled("compute", label)


def test_tables_have_the_data_type_of_their_folder(conditions: Path) -> None:
    assert {t.data_type for t in read_compute(conditions / "compute-512_fp16").tables} == {"fp16"}
    write_info(conditions / "compute-512_fp16", data_type="fp16,fp32")
    with pytest.raises(InputError, match="does not say which tables are of which data type"):
        read_compute(conditions / "compute-512_fp16")


def test_one_file_holds_for_all_conditions(conditions: Path, tmp_path: Path) -> None:
    models = pretrain(conditions, "mine", QUICK, progress=False)
    models.save(tmp_path / "mine.safetensors")
    models = CostModels.load(tmp_path / "mine.safetensors")
    info = models.info
    assert (info.batch_size, info.batch_sizes) == (1024, (512, 1024))
    assert info.trained_on is not None
    assert info.trained_on.data_types == ("fp16", "fp32")
    assert info.trained_on.optimizers == ("adagrad", "sgd")
    assert info.trained_on.device_counts == (4,)
    assert [(error.network, error.part) for error in info.errors] == [
        ("compute", "compute"),
        ("compute", "compute-512_fp16"),
        ("forward.shared", "comm_4"),
        ("forward.shared", "comm_4-512"),
        ("backward.shared", "comm_4"),
        ("backward.shared", "comm_4-512"),
    ]
    for error in info.errors:
        assert error.bias is not None
        assert error.coverage is not None
    assert "Batch size: 512 to 1,024; where nothing else is said 1,024" in render_card(models)
    tables = TableSet.of(
        [
            EmbeddingTable(
                name=str(k),
                num_embeddings=1000,
                embedding_dim=32,
                features=(Feature(name="f", pooling_factor=5.0),),
            )
            for k in range(8)
        ]
    )
    planner = Planner(models)
    for batch_size in (512, 700, 1024):
        cluster = Cluster(world_size=4, memory_bytes=2**30, batch_size=batch_size)
        assert planner.plan(tables, cluster).batch_size == batch_size
    with pytest.raises(InputError, match="hold for batch sizes 512 to 1024, not 1025"):
        planner.plan(tables, Cluster(world_size=4, memory_bytes=2**30, batch_size=1025))


def test_the_batch_size_changes_what_is_predicted(conditions: Path) -> None:
    models = pretrain(conditions, "mine", QUICK, progress=False)
    assert models.networks_for(512) is not models.networks_for(1024)
    assert models.networks_for(512) is models.networks_for(512)
    costs = set()
    tables = TableSet.of(
        [
            EmbeddingTable(
                name=str(k),
                num_embeddings=10**6,
                embedding_dim=128,
                features=(Feature(name="f", pooling_factor=50.0),),
            )
            for k in range(8)
        ]
    )
    for batch_size in (512, 1024):
        cluster = Cluster(world_size=4, memory_bytes=4 * 2**30, batch_size=batch_size)
        plan = Planner(models).plan(tables, cluster)
        costs.add((plan.devices[0].compute_ms, plan.devices[0].backward_comm_ms))
    assert len({compute for compute, _ in costs}) == len({backward for _, backward in costs}) == 2


def test_samples_of_proposed_plans_are_repeated_and_reported(conditions: Path) -> None:
    from neuroshard_fast.pretrain import run

    few = conditions / "compute-plans"
    shutil.copytree(conditions / "compute", few)
    lines = (few / "data.txt").read_text().splitlines(keepends=True)
    (few / "data.txt").write_text("".join(lines[:40]))
    write_info(few, data_type="fp32", drawn_from="plans")
    parts = [read_compute(path) for path in cost_data_folders(conditions).compute]
    repeats = [run._repeats(part, parts, PretrainOptions()) for part in parts]
    # 400 random samples and 40 of plans: repeated 4 times these are 160 of 560.
    assert repeats == [1, 1, 4]
    models = pretrain(conditions, "mine", QUICK, progress=False)
    held_out = {error.part: error.held_out for error in models.info.errors}
    assert held_out["compute-plans"] == "plans"
    assert held_out["compute"] == "samples"


def test_errors_are_those_of_the_predictions() -> None:
    from neuroshard_fast.pretrain.accuracy import held_out_error
    from neuroshard_fast.pretrain.networks import Predictions

    predicted = Predictions(np.array([[1.1], [1.8], [4.2]]), np.array([[1.2], [1.9], [4.2]]))
    measured = np.array([[1.0], [2.0], [4.0]])
    error = held_out_error("compute", "plans", predicted, measured, 0.02, part="compute-a")
    assert error.mape == pytest.approx((0.1 + 0.1 + 0.05) / 3)
    assert error.bias == pytest.approx((0.1 - 0.1 + 0.05) / 3)
    assert error.coverage == pytest.approx(2 / 3)
    assert (error.part, error.held_out, error.noise_floor) == ("compute-a", "plans", 0.02)


def test_spreads_are_scaled_to_what_nine_of_ten_costs_need() -> None:
    import torch

    from neuroshard_fast.pretrain.networks import Batch, CostOutput, calibrate

    class Known:
        """Costs of 1 ms, predicted by 1; the high cost lies ``spread`` above."""

        network = torch.nn.Linear(1, 1)

        def __init__(self, above: list[float], spread: list[float]):
            self.above, self.spread = torch.tensor(above), torch.tensor(spread)

        def batch(self, samples: torch.Tensor, generator: object) -> Batch:
            ones = torch.ones(len(samples), 1)
            high = ones + self.spread[samples][:, None]
            return Batch(ones, high, ones + self.above[samples][:, None], ones)

    def scaled(above: list[float], spread: list[float]) -> float:
        output = CostOutput(1)
        torch.nn.init.ones_(output.spread.bias)
        calibrate(Known(above, spread), output, [np.arange(len(above))])
        return output.spread.bias.item()

    tenths = [k / 10 for k in range(10)]
    assert scaled(tenths, [0.2] * 10) == pytest.approx(0.8 / 0.2)
    # One cost lies above without any spread: the other nine suffice.
    assert scaled([*tenths[:9], 0.5], [0.2] * 9 + [-0.1]) == pytest.approx(0.8 / 0.2)
    # Where no scale suffices, or none is needed, it stays.
    assert scaled([0.1] * 10, [0.0] * 10) == 1.0
    assert scaled([-0.1] * 10, [0.2] * 10) == 1.0


def test_per_count_networks_take_one_folder_of_a_device_count(conditions: Path) -> None:
    write_info(conditions / "compute-512_fp16", data_type="fp16")
    write_info(conditions / "comm_4-512", backend="gloo", world_size=4)
    options = PretrainOptions(**{**QUICK.__dict__, "communication": "per-count"})
    with pytest.raises(InputError, match=r"comm_4, comm_4-512: networks of one device count"):
        pretrain(conditions, "mine", options, progress=False)


def test_a_picture_shows_how_right_predictions_are(conditions: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    output, picture = tmp_path / "m.safetensors", tmp_path / "m.png"
    command = ["pretrain", str(conditions), "-o", str(output), "--plot", str(picture)]
    assert main([*command, "--epochs", "2"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert CostModels.load(output).info.name == "m"


def test_a_picture_of_no_format_is_refused_before_training(
    conditions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["pretrain", str(conditions), "-o", str(tmp_path / "m.safetensors")]
    assert main([*command, "--plot", str(tmp_path / "m.txt")]) != 0
    assert "pictures end in" in capsys.readouterr().err
    assert not (tmp_path / "m.safetensors").exists()


def test_tables_of_several_or_unpooled_features_are_planned_as_they_were_measured(
    tmp_path: Path,
) -> None:
    from neuroshard_fast.features import shard_features

    pool = TableSet.of(
        [
            EmbeddingTable(
                name=f"{pooling}{count}",
                num_embeddings=1000,
                embedding_dim=8,
                features=tuple(Feature(name=f"f{k}", pooling_factor=5.0) for k in range(count)),
                pooling=pooling,
            )
            for pooling in ("sum", "none")
            for count in (1, 3)
        ]
    )
    folder = profile_compute(
        pool, tmp_path, samples=20, batch_size=64, memory_bytes=2**30, hardware="h100", dims=(8,)
    )
    read = read_compute(folder).tables
    for before, after in zip(
        shard_features("physical", pool, 64), shard_features("physical", read, 64), strict=True
    ):
        assert np.allclose(before, after, rtol=1e-6)


def test_high_costs_cover_nine_of_ten_of_the_golden_samples(golden_data: Path) -> None:  # noqa: F811
    coverages: dict[tuple[str, str], list[float]] = {}
    # 200 samples scale the high costs and 200 others are counted: one training alone is off by 3%.
    for seed in range(3):
        options = PretrainOptions(epochs=20, seed=seed)
        for error in pretrain(golden_data, "mine", options, progress=False).info.errors:
            assert error.coverage is not None
            coverages.setdefault((error.network, error.part), []).append(error.coverage)
    assert len(coverages) == 3
    for part, found in coverages.items():
        assert statistics.mean(found) == pytest.approx(0.9, abs=0.06), (part, found)


def test_a_mixed_pool_keeps_the_data_type_of_each_table(tmp_path: Path) -> None:
    pool = TableSet.of(
        [
            EmbeddingTable(
                name=data_type,
                num_embeddings=1000,
                embedding_dim=8,
                features=(Feature(name="f", pooling_factor=5.0),),
                data_type=data_type,
            )
            for data_type in ("fp16", "fp32")
        ]
    )
    folder = profile_compute(
        pool,
        tmp_path,
        samples=30,
        batch_size=4096,
        memory_bytes=2**30,
        hardware="h100",
        dims=(24, 48),
        most_tables=3,
        label="mixed",
    )
    assert folder.name == "compute-mixed"
    data = read_compute(folder)
    assert [(table.data_type, table.embedding_dim) for table in data.tables] == [
        *(("fp16", 24), ("fp16", 48), ("fp32", 24), ("fp32", 48))
    ]
    assert max(map(len, data.samples)) == 3
    assert data.info is not None
    assert data.info.most_tables == 3
    with pytest.raises(InputError, match="holds data with most_tables 3, not 15"):
        profile_compute(
            pool,
            tmp_path,
            samples=30,
            batch_size=4096,
            memory_bytes=2**30,
            hardware="h100",
            dims=(24, 48),
            label="mixed",
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dims", "6"], "embedding_dim must be a multiple of 4"),
        (["--dims", "a"], "must be whole numbers with commas"),
        (["--most-tables", "0"], "most_tables must lie between 1"),
        (["--label", "a/b"], "label must be 1 to 64"),
    ],
)
def test_bad_options_of_profile_are_one_error(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = tmp_path / "t.json"
    assert main(["generate", "broad", "--tables", "3", "-o", str(tables)]) == 0
    command = ["profile", "compute", str(tables), "-o", str(tmp_path / "d"), "--batch-size", "64"]
    status: str | int | None
    try:
        status = main([*command, "--backend", "simulated", "--hardware", "h100", *options])
    except SystemExit as exit_:
        status = exit_.code
    assert status != 0
    assert message in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


def test_generated_tables_have_the_data_type_asked_for(tmp_path: Path) -> None:
    for example in ("broad", "dlrm-2021", "mlperf-dlrm-dcnv2"):
        sizes = [] if example.startswith("mlperf") else ["--tables", "3", "--batch-size", "64"]
        path = tmp_path / f"{example}.json"
        assert main(["generate", example, *sizes, "--data-type", "fp16", "-o", str(path)]) == 0
        assert {table.data_type for table in config.load(path, TableSet)} == {"fp16"}


def test_physical_features_need_no_shift_where_training_never_varied(conditions: Path) -> None:
    """A feature that never varied has no weight: another batch size changes only what it should."""
    shutil.rmtree(conditions / "compute-512_fp16")
    models = pretrain(conditions, "mine", QUICK, progress=False)
    weight, _ = models.layers("compute.table")[0]
    names = models.info.feature_names
    constant = [names.index(name) for name in ("log_batch_size", "log_element_bytes")]
    assert np.all(weight[:, constant] == 0)
    assert np.all(models.tensors["compute.feature_std"][constant] == 1)
