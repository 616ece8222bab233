"""Pre-training: from cost data to cost models, and published checkpoints made into cost models."""

from __future__ import annotations

import math
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from neuroshard_fast.checkpoint_import import import_checkpoints
from neuroshard_fast.cli.main import main
from neuroshard_fast.cluster import Cluster
from neuroshard_fast.cost_data import CostDataInfo, read_communication, read_compute
from neuroshard_fast.cost_models import CostModels
from neuroshard_fast.errors import InputError
from neuroshard_fast.features import compute_features
from neuroshard_fast.planner import Planner
from neuroshard_fast.pretrain import PretrainOptions, pretrain
from neuroshard_fast.pretrain.card import render_card
from neuroshard_fast.tables import EmbeddingTable, Feature, TableSet

torch = pytest.importorskip("torch")
Floats = npt.NDArray[np.floating[Any]]

QUICK = PretrainOptions(epochs=3, table_sizes=(8, 4), set_sizes=(4,), minibatch_size=32)


def predict_mlp(models: CostModels, network: str, inputs: Floats, *, relu_at_end: bool) -> Floats:
    layers = models.layers(network)
    values = inputs.astype(np.float32)
    for number, (weight, bias) in enumerate(layers):
        values = values @ weight.T + bias
        if relu_at_end or number + 1 < len(layers):
            values = np.maximum(values, 0)
    return values


def standardised(models: CostModels, network: str, inputs: Floats) -> Floats:
    mean, std = (models.tensors[f"{network}.feature_{part}"] for part in ("mean", "std"))
    return (inputs.astype(np.float32) - mean) / std


def predict_compute(models: CostModels, tables: TableSet, samples: list[tuple[int, ...]]) -> Floats:
    """What a file of cost models says of sets of tables, by docs/method.md."""
    info = models.info
    features = compute_features(info.feature_kind, tables, info.batch_size)
    inputs = standardised(models, "compute", features)
    encoded = predict_mlp(models, "compute.table", inputs, relu_at_end=True)
    sums = np.stack([encoded[list(sample)].sum(axis=0) for sample in samples])
    return predict_mlp(models, "compute.set", sums, relu_at_end=False)[:, 0]


def predict_shared(
    models: CostModels, direction: str, dims: Floats, starts: Floats | None
) -> Floats:
    """What shared communication networks say, by docs/cost-models.md, device by device."""
    network = f"{direction}.shared"
    per_node = models.info.devices_per_node
    assert per_node is not None
    devices = dims.shape[1]
    node = [device // per_node for device in range(devices)]
    mb = models.info.batch_size * 4 / devices / 1e6
    inputs = []
    for device in range(devices):
        peers = [other for other in range(devices) if node[other] == node[device]]
        own, in_node = dims[:, device], dims[:, peers].sum(axis=1)
        features = [
            mb * own * (len(peers) - 1),
            mb * own * (devices - len(peers)),
            mb * (in_node - own),
            mb * (dims.sum(axis=1) - in_node),
            np.full(len(dims), len(peers) - 1.0),
            np.full(len(dims), float(devices - len(peers))),
            np.full(len(dims), math.log2(devices)),
        ]
        if starts is not None:
            features.append(starts.max(axis=1) - starts[:, device])
        inputs.append(np.stack(features, axis=1))
    encoded = predict_mlp(
        models,
        f"{network}.device",
        standardised(models, network, np.stack(inputs, axis=1)),
        relu_at_end=False,
    )
    across = np.concatenate([encoded.max(axis=1), encoded.mean(axis=1)], axis=1)
    return np.stack(
        [
            predict_mlp(
                models,
                f"{network}.head",
                np.concatenate([encoded[:, device], across], axis=1),
                relu_at_end=False,
            )[:, 0]
            for device in range(devices)
        ],
        axis=1,
    )


def golden_costs(direction: str, dims: Floats, starts: Floats) -> Floats:
    """The formula of the golden labels."""
    devices = dims.shape[1]
    base = 0.1 + 65536 * 4 * dims * (devices - 1) / devices / 1e11 * 250
    backward = 0.7 * base.max(axis=1, keepdims=True) + 0.3 * base
    waits = starts.max(axis=1, keepdims=True) - starts
    return np.asarray(backward + (0.9 * waits if direction == "forward" else 0.0))


def predict_communication(models: CostModels, network: str, inputs: Sequence[Floats]) -> Floats:
    values = standardised(models, network, np.concatenate(inputs, axis=1))
    return predict_mlp(models, network, values, relu_at_end=False)


def mape(predicted: Floats, measured: Floats) -> float:
    return float(np.mean(np.abs(predicted - measured) / measured))


def held_out_samples(count: int, seed: int) -> npt.NDArray[np.int64]:
    from neuroshard_fast.pretrain.training import Split

    return Split.random(count, seed).test


@pytest.fixture(scope="module")
def golden_data(golden: Path) -> Path:
    return golden / "cost_data"


@pytest.fixture(scope="module")
def trained(golden_data: Path) -> CostModels:
    options = PretrainOptions(epochs=150, communication="per-count")
    return pretrain(golden_data, "golden", options, progress=False)


@pytest.fixture
def small_data(golden_data: Path, tmp_path: Path) -> Path:
    """The first 200 samples of the golden cost data."""
    folder = tmp_path / "data"
    for part in ("compute", "comm_4"):
        (folder / part).mkdir(parents=True)
        lines = (golden_data / part / "data.txt").read_text().splitlines(keepends=True)
        (folder / part / "data.txt").write_text("".join(lines[:200]))
    shutil.copy(golden_data / "compute/table_configs.json", folder / "compute")
    return folder


def write_info(folder: Path, **fields: object) -> None:
    info = {
        "source": "measured",
        "backend": "fbgemm",
        "hardware": "a test",
        "batch_size": 1024,
        "seed": 3,
        "warmup": 5,
        "iterations": 10,
        "versions": {"torch": "2.0"},
        "date": "2026-01-01T00:00:00+00:00",
        **fields,
    }
    (folder / "info.json").write_bytes(msgspec.json.encode(msgspec.convert(info, CostDataInfo)))


def test_compute_network_is_closer_than_the_golden_checkpoint_on_held_out_samples(
    trained: CostModels, golden_data: Path, golden_models: Path
) -> None:
    data = read_compute(golden_data / "compute")
    held_out = held_out_samples(len(data.costs), seed=0)
    samples, costs = [data.samples[i] for i in held_out], data.costs[held_out]
    ours = predict_compute(trained, data.tables, samples)
    published = predict_compute(CostModels.load(golden_models), data.tables, samples)
    print(f"compute MAPE: ours {mape(ours, costs):.2%}, golden {mape(published, costs):.2%}")
    assert mape(ours, costs) < mape(published, costs)
    assert np.mean((ours - costs) ** 2) < np.mean((published - costs) ** 2)


@pytest.mark.parametrize("network", ["forward.4", "backward.4"])
def test_communication_networks_are_closer_than_the_golden_checkpoints(
    trained: CostModels, golden_data: Path, golden_models: Path, network: str
) -> None:
    data = read_communication(golden_data / "comm_4")
    held_out = held_out_samples(len(data.dims), seed=0)
    if network == "forward.4":
        inputs, costs = [data.dims[held_out], data.starts[held_out]], data.forward[held_out]
    else:
        inputs, costs = [data.dims[held_out]], data.backward[held_out]
    ours = predict_communication(trained, network, inputs)
    published = predict_communication(CostModels.load(golden_models), network, inputs)
    print(f"{network} MAPE: ours {mape(ours, costs):.2%}, golden {mape(published, costs):.2%}")
    assert mape(ours, costs) < mape(published, costs)
    assert np.mean((ours - costs) ** 2) < np.mean((published - costs) ** 2)


def test_reported_errors_are_those_of_the_exported_networks(
    trained: CostModels, golden_data: Path
) -> None:
    data = read_compute(golden_data / "compute")
    held_out = held_out_samples(len(data.costs), seed=0)
    predicted = predict_compute(trained, data.tables, [data.samples[i] for i in held_out])
    reported = {error.network: error for error in trained.info.errors}
    assert list(reported) == ["compute", "forward.4", "backward.4"]
    assert reported["compute"].samples == len(held_out)
    assert reported["compute"].mape == pytest.approx(
        mape(predicted, data.costs[held_out]), rel=1e-3
    )
    assert reported["compute"].kendall is not None
    assert reported["compute"].kendall > 0.95
    assert reported["compute"].noise_floor is None


def test_numbering_of_devices_hardly_changes_a_prediction(
    trained: CostModels, golden_data: Path
) -> None:
    data = read_communication(golden_data / "comm_4")
    inputs = [data.dims[:200], data.starts[:200]]
    order = [2, 0, 3, 1]
    predicted = predict_communication(trained, "forward.4", inputs)
    renumbered = predict_communication(
        trained, "forward.4", [values[:, order] for values in inputs]
    )
    assert mape(renumbered, predicted[:, order]) < 0.05


def test_renumbering_keeps_the_devices_of_a_node_together() -> None:
    from neuroshard_fast.pretrain.networks import CommunicationRegression

    costs = np.arange(1.0, 81.0).reshape(5, 16)
    options = PretrainOptions(devices_per_node=8)
    regression = CommunicationRegression("backward.16", [costs], costs, np.arange(5), options)
    renumbered = regression.batch(torch.arange(5), torch.Generator().manual_seed(0)).measured
    nodes = (renumbered.numpy() - np.arange(1, 80, 16)[:, None]) // 8
    assert (nodes.reshape(5, 2, 8) == nodes.reshape(5, 2, 8)[:, :, :1]).all()
    assert (np.sort(renumbered.numpy(), axis=1) == costs).all()
    assert not (renumbered.numpy() == costs).all()


@pytest.fixture(scope="module")
def several_counts(golden_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Golden labels of 2, 4 and 16 devices, and few compute samples."""
    from neuroshard_fast.profile.sampling import draw_all_to_all
    from neuroshard_fast.published import write_communication_samples

    folder = tmp_path_factory.mktemp("several")
    (folder / "compute").mkdir()
    shutil.copy(golden_data / "compute/table_configs.json", folder / "compute")
    lines = (golden_data / "compute/data.txt").read_text().splitlines(keepends=True)
    (folder / "compute/data.txt").write_text("".join(lines[:40]))
    for devices in (2, 4, 16):
        drawn = [draw_all_to_all(devices, 0, sample) for sample in range(600)]
        dims = np.array([x.dims for x in drawn], float)
        starts = np.array([x.starts_ms for x in drawn])
        costs = [golden_costs(way, dims, starts).tolist() for way in ("forward", "backward")]
        (folder / f"comm_{devices}").mkdir()
        write_communication_samples(
            folder / f"comm_{devices}/data.txt",
            list(zip(dims.tolist(), starts.tolist(), *costs, strict=True)),
        )
    return folder


@pytest.fixture(scope="module")
def shared(several_counts: Path) -> CostModels:
    options = PretrainOptions(epochs=300, devices_per_node=512)
    return pretrain(several_counts, "shared", options, progress=False)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("devices", [2, 3, 4, 8, 12, 16])
def test_shared_networks_know_device_counts_that_they_never_saw(
    shared: CostModels, direction: str, devices: int
) -> None:
    from neuroshard_fast.profile.sampling import draw_all_to_all

    drawn = [draw_all_to_all(devices, 1, sample) for sample in range(300)]
    dims = np.array([x.dims for x in drawn], float)
    starts = np.array([x.starts_ms for x in drawn])
    inputs = starts if direction == "forward" else None
    costs = golden_costs(direction, dims, starts)
    predicted = predict_shared(shared, direction, dims, inputs)
    print(f"{direction}, {devices} devices: MAPE {mape(predicted, costs):.2%}", end=", ")
    assert mape(predicted, costs) < 0.02
    near = starts * (0.05 / starts.max())
    costs = golden_costs(direction, dims, near)
    predicted = predict_shared(shared, direction, dims, near if inputs is not None else None)
    bias = float((predicted - costs).mean() / costs.mean())
    print(f"near zero wait bias {bias:+.2%}")
    assert abs(bias) < 0.02


def test_shared_networks_do_not_know_how_devices_are_numbered(shared: CostModels) -> None:
    generator = np.random.default_rng(0)
    dims = generator.integers(1, 500, size=(50, 7)) * 4.0
    starts = generator.uniform(0.0, 5.0, size=(50, 7))
    order = generator.permutation(7)
    predicted = predict_shared(shared, "forward", dims, starts)
    renumbered = predict_shared(shared, "forward", dims[:, order], starts[:, order])
    np.testing.assert_allclose(renumbered, predicted[:, order], rtol=1e-4)


@pytest.mark.parametrize("devices", [2, 6, 24])
def test_plans_cost_what_shared_networks_say(shared: CostModels, devices: int) -> None:
    tables = TableSet.of(
        [
            EmbeddingTable(
                name=f"table {index}",
                num_embeddings=1000 * (index + 1),
                embedding_dim=64,
                features=(Feature(name="feature", pooling_factor=2.0),),
            )
            for index in range(3 * devices)
        ]
    )
    plan = Planner(shared).plan(tables, Cluster(world_size=devices, memory_bytes=2**34))
    loads = plan.devices
    dims = np.zeros((1, devices))
    for shard in plan.shards:
        dims[0, shard.device] += shard.width
    busy = np.array([[load.compute_ms + load.backward_comm_ms for load in loads]])
    for direction, costs, starts in (
        ("backward", [load.backward_comm_ms for load in loads], None),
        ("forward", [load.forward_comm_ms for load in loads], busy - busy.min()),
    ):
        predicted = predict_shared(shared, direction, dims, starts)[0]
        np.testing.assert_allclose(predicted, costs, rtol=1e-4, atol=1e-4)


def test_errors_of_shared_networks_are_reported_for_each_device_count(
    shared: CostModels, several_counts: Path
) -> None:
    errors = [error for error in shared.info.errors if error.network != "compute"]
    assert [(error.network, error.devices) for error in errors] == [
        (network, devices)
        for network in ("forward.shared", "backward.shared")
        for devices in (2, 4, 16)
    ]
    data = read_communication(several_counts / "comm_4")
    test = held_out_samples(len(data.dims), seed=0)
    predicted = predict_shared(shared, "forward", data.dims[test], data.starts[test])
    assert errors[1].samples == len(test)
    assert errors[1].mape == pytest.approx(mape(predicted, data.forward[test]), rel=1e-3)
    card = render_card(shared)
    assert "Device counts: any (trained on 2, 4, 16; nodes of 512)" in card
    assert re.search(r"\| forward\.shared +\| comm_16 +\|.*\| 16 +\|", card)
    assert "forward.shared.head: layers 24 → 32 → 2" in card


@pytest.mark.parametrize("starts", [True, False])
def test_features_of_devices_know_nodes_of_any_size(starts: bool) -> None:
    from neuroshard_fast.pretrain.shared_communication import communication_features

    dims = np.array([[8.0, 16.0, 24.0, 4.0, 12.0]])
    waits = np.array([[0.0, 2.0, 1.0, 0.0, 0.5]])
    features = communication_features(dims, waits if starts else None, 1_250_000, 3)
    # 1,250,000 samples of 4 bytes: 1 MB a column and peer.
    expected = [
        [16.0, 16.0, 40.0, 16.0, 2.0, 2.0, math.log2(5), 2.0],
        [32.0, 32.0, 32.0, 16.0, 2.0, 2.0, math.log2(5), 0.0],
        [48.0, 48.0, 24.0, 16.0, 2.0, 2.0, math.log2(5), 1.0],
        [4.0, 12.0, 12.0, 48.0, 1.0, 3.0, math.log2(5), 2.0],
        [12.0, 36.0, 4.0, 48.0, 1.0, 3.0, math.log2(5), 1.5],
    ]
    wanted = np.array(expected)[:, : 8 if starts else 7]
    np.testing.assert_allclose(features[0], wanted, rtol=1e-6)


def test_what_never_varied_in_training_has_no_effect(shared: CostModels) -> None:
    weight = shared.layers("forward.shared.device")[0][0]
    outside = [1, 3, 5]  # sent to, received from, and number of, devices of other nodes
    assert not weight[:, outside].any()
    assert (shared.tensors["forward.shared.feature_std"][outside] == 1).all()
    assert weight[:, [0, 2, 4, 6, 7]].any(axis=0).all()


def test_minibatches_hold_samples_of_one_device_count_and_every_sample_once() -> None:
    from neuroshard_fast.pretrain.training import Split, fit

    seen: list[list[int]] = []

    class Recording(Drifting):
        def batch(self, samples: Any, generator: Any) -> Any:
            if generator is not None:
                seen.append(samples.tolist())
            return super().batch(samples, generator)

    splits = [Split.random(50, 0), Split.random(30, 0, first=50)]
    fit(
        Recording(best=9),
        splits,
        PretrainOptions(epochs=1),
        minibatch_size=7,
        weight_decay=0.0,
        label="recording",
        progress=False,
    )
    assert all(len({sample < 50 for sample in batch}) == 1 for batch in seen)
    wanted = sorted(int(sample) for split in splits for sample in split.training)
    assert sorted(sample for batch in seen for sample in batch) == wanted
    assert [batch[0] < 50 for batch in seen] != sorted((b[0] < 50 for b in seen), reverse=True)


def test_same_seed_gives_the_same_networks_and_another_seed_others(small_data: Path) -> None:
    first, again = (pretrain(small_data, "a", QUICK, progress=False) for _ in range(2))
    other = pretrain(
        small_data,
        "a",
        PretrainOptions(**{**QUICK.__dict__, "seed": 1}),
        progress=False,
    )
    for name, array in first.tensors.items():
        np.testing.assert_array_equal(again.tensors[name], array)
    assert not np.array_equal(
        first.tensors["compute.set.0.weight"], other.tensors["compute.set.0.weight"]
    )


def test_training_leaves_torchs_seed_and_threads_as_they_were(small_data: Path) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    threads = torch.get_num_threads()
    torch.manual_seed(7)
    options = PretrainOptions(**{**QUICK.__dict__, "threads": threads + 1})
    pretrain(small_data, "a", options, progress=False)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.rand(3), expected)


class Drifting:
    """A regression whose validation error is smallest after ``best`` epochs, then grows."""

    def __init__(self, best: int):
        self.network = torch.nn.Linear(1, 1)
        self.best = best
        self.epochs = 0
        self.weights: list[float] = []

    def batch(self, samples: Any, generator: Any) -> Any:
        from neuroshard_fast.pretrain.networks import Batch

        costs = torch.ones(len(samples), 1)
        if generator is not None:
            self.epochs += 1
            return Batch(self.network(costs), None, costs, costs)
        if self.epochs:
            self.weights.append(self.network.weight.item())
        return Batch(costs + abs(self.epochs - self.best), None, costs, costs)


def test_training_stops_after_patience_and_keeps_the_best_epoch() -> None:
    from neuroshard_fast.pretrain.training import Split, fit

    regression = Drifting(best=4)
    options = PretrainOptions(epochs=100, patience=5)
    split = Split.random(100, 0)
    fit(
        regression,
        [split],
        options,
        minibatch_size=100,
        weight_decay=0.0,
        label="drifting",
        progress=False,
    )
    assert regression.epochs == 9
    assert regression.network.weight.item() == regression.weights[3]


def test_an_error_that_is_not_finite_ends_training_though_there_was_a_best_epoch() -> None:
    from neuroshard_fast.pretrain.training import Split, fit

    class Diverging(Drifting):
        def batch(self, samples: Any, generator: Any) -> Any:
            batch = super().batch(samples, generator)
            factor = math.nan if self.epochs >= 3 else 1.0
            return batch._replace(predicted=batch.predicted * factor)

    regression = Diverging(best=9)
    options = PretrainOptions(epochs=100)
    with pytest.raises(InputError, match=r"drifting: training diverged: .* after epoch 3;"):
        fit(
            regression,
            [Split.random(100, 0)],
            options,
            minibatch_size=100,
            weight_decay=0.0,
            label="drifting",
            progress=False,
        )
    assert regression.epochs == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--learning-rate", "1e6"], "learning_rate must be a finite number between"),
        (["--learning-rate", "10", "--weight-decay", "100"], "compute: training diverged: "),
    ],
)
def test_training_that_diverges_is_one_error_and_writes_nothing(
    small_data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    before = sorted(tmp_path.rglob("*"))
    output = tmp_path / "mine.safetensors"
    assert main(["pretrain", str(small_data), "-o", str(output), *options]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert message in errors[0]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("cost", ["1e38", "1e-40", "1e-300", "nan", "inf"])
def test_costs_that_networks_cannot_learn_are_refused(
    small_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], cost: str
) -> None:
    with (small_data / "compute/data.txt").open("a") as file:
        file.write(f"0 {cost}\n")
    output = tmp_path / "mine.safetensors"
    assert main(["pretrain", str(small_data), "-o", str(output)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "data.txt" in error
    assert not output.exists()


def test_costs_at_the_bounds_are_learnt_without_overflow(small_data: Path) -> None:
    (small_data / "compute/data.txt").write_text("0 1e12\n1,2 1e-9\n" * 20)
    models = pretrain(small_data, "mine", QUICK, progress=False)
    assert math.isfinite(models.info.errors[0].mape)


def test_predictions_that_are_not_finite_are_refused() -> None:
    from neuroshard_fast.pretrain.accuracy import held_out_error
    from neuroshard_fast.pretrain.networks import Predictions

    predicted = Predictions(np.array([[1.0], [np.inf]]), None)
    with pytest.raises(InputError, match=r"forward\.4: training diverged: predictions"):
        held_out_error("forward.4", "samples", predicted, np.ones((2, 1)), None, part="comm_4")


@pytest.mark.parametrize(("samples", "epochs"), [(25, 1), (25, 2), (25, 20), (125, 20), (125, 41)])
def test_the_learning_rate_rises_to_its_peak_and_falls(
    samples: int, epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from neuroshard_fast.pretrain.training import Split, fit

    rates: list[float] = []

    class Recording(torch.optim.AdamW):  # type: ignore[misc, name-defined]
        def step(self, closure=None):  # type: ignore[no-untyped-def]
            rates.append(self.param_groups[0]["lr"])
            return super().step(closure)

    monkeypatch.setattr(torch.optim, "AdamW", Recording)
    options = PretrainOptions(epochs=epochs, learning_rate=0.01)
    split = Split.random(samples, 0)
    fit(
        Drifting(best=9),
        [split],
        options,
        minibatch_size=100,
        weight_decay=0.0,
        label="rates",
        progress=False,
    )
    assert len(rates) == epochs * -(-samples * 8 // 10 // 100)
    peak = rates.index(max(rates))
    assert max(rates) == pytest.approx(0.01)
    assert peak <= max(1, len(rates) // 20)
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert all(rate > 0 for rate in rates)
    if len(rates) >= 20:
        assert rates[-1] < 0.001


def test_data_of_20_steps_is_trained_on(small_data: Path) -> None:
    (small_data / "compute/data.txt").write_text("0 1.0\n1 2.0\n" * 10)
    shutil.rmtree(small_data / "comm_4")
    options = PretrainOptions(epochs=20, minibatch_size=16)
    assert pretrain(small_data, "mine", options, progress=False).info.errors[0].samples == 2


def test_a_name_that_cannot_be_printed_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name must be a non-empty string"):
        pretrain(tmp_path / "nowhere", "two\nlines", QUICK, progress=False)


def test_a_folder_whose_name_cannot_be_recorded_is_refused_before_training(
    small_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.stats", None)  # training would fail
    with pytest.raises(InputError, match="the command to record must be a non-empty string"):
        pretrain(small_data.rename(small_data.with_name("two\nlines")), "mine", QUICK)


def test_unseen_tables_measured_with_another_operator_are_refused(small_data: Path) -> None:
    held_out = small_data / "compute_heldout"
    held_out.mkdir()
    configs = msgspec.json.decode((small_data / "compute/table_configs.json").read_bytes())
    others = [{**config, "pooling_factor": 1000.0} for config in configs[:2]]
    (held_out / "table_configs.json").write_bytes(msgspec.json.encode(others))
    (held_out / "data.txt").write_text("0,1 1.0\n")
    write_info(small_data / "compute")
    write_info(small_data / "comm_4", backend="gloo", world_size=4)
    write_info(held_out, backend="embedding-bag")
    message = r"backend .*compute: fbgemm, compute_heldout: embedding-bag"
    with pytest.raises(InputError, match=message):
        pretrain(small_data, "mine", QUICK, progress=False)


def test_data_folders_are_recorded_with_the_errors(small_data: Path) -> None:
    write_info(small_data / "compute", rounds=4)
    write_info(small_data / "comm_4", backend="gloo", hardware="another", world_size=4)
    (small_data / "compute/repeats.txt").write_text("0 0.7\n0 0.8\n")
    models = pretrain(small_data, "mine", QUICK, progress=False)
    info = models.info
    assert (info.source, info.batch_size, info.hardware) == ("measured", 1024, "a test; another")
    assert [(part.part, part.samples, part.tables) for part in info.data] == [
        ("compute", 200, 5136),
        ("comm_4", 200, None),
    ]
    assert [(part.seed, part.rounds) for part in info.data] == [(3, 4), (3, 1)]
    assert info.training is not None
    assert info.training.command.startswith("neuroshard pretrain data -o mine.safetensors")
    assert "--epochs 3" in info.training.command
    assert info.errors[0].noise_floor == pytest.approx(
        read_compute(small_data / "compute").noise_floor
    )
    lines = render_card(models).splitlines()
    heads = next(line for line in lines if line.startswith("| folder ")).split("|")
    cells = next(line for line in lines if line.startswith("| compute ") and "fbgemm" in line)
    row = dict(zip(map(str.strip, heads), map(str.strip, cells.split("|")), strict=True))
    assert (row["samples"], row["seed"], row["rounds"]) == ("200", "3", "4")
    assert "On a CPU, a device is a process with one thread." in lines


def test_error_on_unseen_tables_is_reported_where_there_is_data_of_them(small_data: Path) -> None:
    held_out = small_data / "compute_heldout"
    held_out.mkdir()
    configs = msgspec.json.decode((small_data / "compute/table_configs.json").read_bytes())
    others = [{**config, "pooling_factor": 1000.0} for config in configs[:50]]
    (held_out / "table_configs.json").write_bytes(msgspec.json.encode(others))
    (held_out / "data.txt").write_text("0,1 1.0\n3,4,5 2.0\n49 0.5\n")
    models = pretrain(small_data, "mine", QUICK, progress=False)
    error = models.info.errors[1]
    assert (error.network, error.held_out, error.samples) == ("compute", "tables", 3)
    predicted = predict_compute(models, read_compute(held_out).tables, [(0, 1), (3, 4, 5), (49,)])
    assert error.mape == pytest.approx(mape(predicted, np.array([1.0, 2.0, 0.5])), rel=1e-3)


def test_tables_that_training_knows_are_refused_as_unseen_ones(small_data: Path) -> None:
    held_out = small_data / "compute_heldout"
    held_out.mkdir()
    configs = msgspec.json.decode((small_data / "compute/table_configs.json").read_bytes())
    others = [{**configs[0], "row": 1}, {**configs[1], "dim": 64}]
    (held_out / "table_configs.json").write_bytes(msgspec.json.encode(others))
    (held_out / "data.txt").write_text("0 1.0\n1 2.0\n")
    with pytest.raises(InputError, match=r"compute_heldout: table 1 .* also in compute"):
        pretrain(small_data, "mine", QUICK, progress=False)


@pytest.mark.parametrize(
    "kind", [{"features": "published"}, {"communication": "per-count", "communication_sizes": (8,)}]
)
def test_parts_of_different_batch_sizes_are_refused_where_networks_serve_one(
    small_data: Path, kind: dict[str, Any]
) -> None:
    write_info(small_data / "compute")
    write_info(small_data / "comm_4", batch_size=2048)
    options = PretrainOptions(**{**QUICK.__dict__, **kind})
    with pytest.raises(InputError, match=r"batch_size .*compute: 1024, comm_4: 2048"):
        pretrain(small_data, "mine", options, progress=False)


def test_measured_and_simulated_parts_are_not_mixed(small_data: Path) -> None:
    write_info(small_data / "compute")
    write_info(small_data / "comm_4", source="simulated", backend="simulated")
    with pytest.raises(InputError, match=r"source .*compute: measured, comm_4: simulated"):
        pretrain(small_data, "mine", QUICK, progress=False)


def test_a_folder_named_for_another_device_count_is_refused(small_data: Path) -> None:
    (small_data / "comm_4").rename(small_data / "comm_8")
    with pytest.raises(InputError, match=r"comm_8: holds data of 4 devices"):
        pretrain(small_data, "mine", QUICK, progress=False)


@pytest.mark.parametrize(
    ("part", "lines", "message"),
    [
        ("compute", "0 1.0\n", r"compute: 1 samples are too few"),
        ("compute", "0 1.0\n" * 30 + "1 0.0\n", r"compute: data\.txt: .* above 0 ms"),
        ("comm_4", "4,4,4,4 0,0,0,0 1,1,1,1 1,1,1,1\n", r"comm_4: 1 samples are too few"),
        ("comm_4", "4,4,4,4 0,0,0,0 1,1,0,1 1,1,1,1\n" * 30, r"comm_4: data\.txt: .* above 0 ms"),
    ],
)
def test_data_that_cannot_be_trained_on_is_refused(
    small_data: Path, part: str, lines: str, message: str
) -> None:
    (small_data / part / "data.txt").write_text(lines)
    with pytest.raises(InputError, match=message):
        pretrain(small_data, "mine", QUICK, progress=False)


def test_costs_that_never_vary_are_learnt(small_data: Path) -> None:
    (small_data / "compute/data.txt").write_text("0 3.0\n1,2 3.0\n" * 20)
    shutil.rmtree(small_data / "comm_4")
    models = pretrain(small_data, "mine", PretrainOptions(epochs=100), progress=False)
    assert models.info.errors[0].mape < 0.01
    assert models.info.errors[0].kendall is None
    assert models.device_counts == ()


def test_pretrain_command_writes_a_file_and_prints_its_errors(
    small_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "mine.safetensors"
    options = ["--epochs", "2", "--table-sizes", "8,4", "--communication-sizes", "8"]
    options += ["--communication", "per-count"]
    assert main(["pretrain", str(small_data), "-o", str(output), *options]) == 0
    models = CostModels.load(str(output))
    assert models.info.name == "mine"
    assert [bias.shape for _, bias in models.layers("compute.table")] == [(8,), (4,)]
    assert "forward.4" in capsys.readouterr().out


def test_pretrain_command_refuses_an_output_before_it_trains(
    small_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = str(tmp_path / "nowhere" / "mine.safetensors")
    assert main(["pretrain", str(small_data), "-o", output]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_imported_checkpoints_have_the_weights_of_torch(golden: Path, golden_models: Path) -> None:
    models = CostModels.load(golden_models)
    assert models.info.source == "imported"
    assert models.info.batch_size == 65536
    assert models.device_counts == (2, 4, 8, 16, 128)
    compute = torch.load(golden / "models/compute.pt", weights_only=True)
    forward = torch.load(golden / "models/comm_8_fw.pt", weights_only=True)
    for name, tensor in (
        ("compute.table.1.weight", compute["state_dict"]["t_hidden.1.weight"]),
        ("compute.set.0.bias", compute["state_dict"]["c_hidden.0.bias"]),
        ("compute.feature_std", compute["feature_stds"]),
        ("forward.8.3.weight", forward["state_dict"]["hidden.3.weight"]),
        ("forward.8.feature_mean", forward["feature_means"]),
    ):
        np.testing.assert_array_equal(models.tensors[name], tensor.numpy())


@pytest.mark.parametrize(
    ("compute", "forward", "backward", "message"),
    [
        ("compute", ["comm_2_fw"], [], r"comm_2_fw\.pt: no backward checkpoint for 2 devices"),
        ("compute", [], ["comm_4_bw"], r"comm_4_bw\.pt: no forward checkpoint for 4 devices"),
        (
            "compute",
            ["comm_2_fw", "comm_2_fw"],
            ["comm_2_bw"],
            r"a second forward checkpoint for 2 devices",
        ),
        ("compute", ["comm_2_bw"], ["comm_2_fw"], r"comm_2_bw\.pt: is a backward checkpoint"),
        ("comm_2_fw", [], [], r"comm_2_fw\.pt: .*not a checkpoint of this kind"),
        ("compute", ["compute"], [], r"compute\.pt: .*not a checkpoint of this kind"),
    ],
)
def test_checkpoints_that_do_not_go_together_are_refused(
    golden: Path, compute: str, forward: list[str], backward: list[str], message: str
) -> None:
    def path(name: str) -> Path:
        return golden / "models" / f"{name}.pt"

    with pytest.raises(InputError, match=message):
        import_checkpoints(
            "bad",
            compute=path(compute),
            forward=[path(name) for name in forward],
            backward=[path(name) for name in backward],
        )


def test_models_command_prints_the_card_of_a_file(
    small_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for part in ("compute", "comm_4"):
        write_info(small_data / part, source="simulated", backend="simulated", hardware="h100")
    output = tmp_path / "mine.safetensors"
    pretrain(small_data, "mine", QUICK, progress=False).save(output)
    assert main(["models", str(output)]) == 0
    card = capsys.readouterr().out
    assert "# Cost models mine" in card
    assert "**Simulated**" in card
    assert "Device counts: any (trained on 4; nodes of 8)" in card
    assert "neuroshard pretrain data -o mine.safetensors" in card


def test_models_command_lists_the_shipped_models_with_source_and_errors(
    small_data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("neuroshard_fast.cost_models._SHIPPED_FOLDER", tmp_path)
    for part in ("compute", "comm_4"):
        write_info(small_data / part, source="simulated", backend="simulated", hardware="h100")
    models = pretrain(small_data, "h100-sim", QUICK, progress=False)
    models.save(tmp_path / "h100-sim.safetensors")
    (tmp_path / "h100-sim.md").write_text("# The card\n")
    assert main(["models"]) == 0
    line = next(
        line for line in capsys.readouterr().out.splitlines() if line.startswith("h100-sim")
    )
    assert "SIMULATED" in line
    assert f"{models.info.errors[0].mape:.1%}" in line
    assert main(["models", "h100-sim"]) == 0
    assert capsys.readouterr().out == "# The card\n"
    assert main(["models", "h300-sim"]) == 2
    assert "shipped: h100-sim" in capsys.readouterr().err
