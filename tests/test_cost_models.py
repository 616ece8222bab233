"""The file of cost models: what it holds, and that nothing unsound is ever loaded."""

from __future__ import annotations

import json
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.numpy

from neuroshard_fast import cost_models
from neuroshard_fast.cost_models import CostModels, CostModelsInfo, HeldOutError
from neuroshard_fast.errors import InputError

INFO = CostModelsInfo(name="tiny", source="measured", hardware="a test", batch_size=1024)


def tiny_tensors(device_counts: tuple[int, ...] = (2, 4)) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {}

    def add(network: str, sizes: list[int]) -> None:
        for layer, (inputs, outputs) in enumerate(pairwise(sizes)):
            weight = generator.standard_normal((outputs, inputs))
            tensors[f"{network}.{layer}.weight"] = weight.astype(np.float32)
            tensors[f"{network}.{layer}.bias"] = np.zeros(outputs, np.float32)

    def add_statistics(network: str, inputs: int) -> None:
        tensors[f"{network}.feature_mean"] = np.zeros(inputs, np.float32)
        tensors[f"{network}.feature_std"] = np.ones(inputs, np.float32)

    add("compute.table", [20, 8, 5])
    add("compute.set", [5, 6, 1])
    add_statistics("compute", 20)
    for devices in device_counts:
        add(f"forward.{devices}", [2 * devices, 7, devices])
        add_statistics(f"forward.{devices}", 2 * devices)
        add(f"backward.{devices}", [devices, 3, 3, devices])
        add_statistics(f"backward.{devices}", devices)
    return tensors


TRAINED_ON: dict[str, object] = {
    "batch_sizes": [512, 2048],
    "data_types": ["fp32"],
    "optimizers": ["sgd"],
    **{field: [1.0, 2.0] for field in ("rows", "width", "pooling_factor", "reuse")},
    **{field: [1.0, 2.0] for field in ("device_tables", "device_lookups", "device_read_bytes")},
}
SHARED_INFO = msgspec.structs.replace(INFO, devices_per_node=4)


def shared_tensors() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    tensors = tiny_tensors(())
    for direction, features in (("forward", 8), ("backward", 7)):
        network = f"{direction}.shared"
        tensors[f"{network}.feature_mean"] = np.zeros(features, np.float32)
        tensors[f"{network}.feature_std"] = np.ones(features, np.float32)
        for part, sizes in (("device", [features, 6, 3]), ("head", [9, 5, 1])):
            for layer, (inputs, outputs) in enumerate(pairwise(sizes)):
                weight = generator.standard_normal((outputs, inputs)).astype(np.float32)
                tensors[f"{network}.{part}.{layer}.weight"] = weight
                tensors[f"{network}.{part}.{layer}.bias"] = np.zeros(outputs, np.float32)
    return tensors


def write(
    path: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str] | None = None
) -> Path:
    if metadata is None:
        metadata = {"neuroshard": msgspec.json.encode(INFO).decode()}
    path.write_bytes(safetensors.numpy.save(tensors, metadata=metadata))
    return path


def with_tensor(name: str, array: np.ndarray | None) -> dict[str, np.ndarray]:
    tensors = tiny_tensors()
    if array is None:
        del tensors[name]
    else:
        tensors[name] = array
    return tensors


def test_a_saved_file_loads_with_the_same_weights_and_information(tmp_path: Path) -> None:
    error = HeldOutError(
        network="compute", held_out="tables", samples=10, mape=0.05, kendall=None, mse=1e-3
    )
    models = CostModels(msgspec.structs.replace(INFO, errors=(error,)), tiny_tensors())
    models.save(tmp_path / "tiny.safetensors")
    loaded = CostModels.load(tmp_path / "tiny.safetensors")
    assert loaded.info == models.info
    assert loaded.device_counts == (2, 4)
    assert loaded.tensors.keys() == models.tensors.keys()
    for name, array in models.tensors.items():
        np.testing.assert_array_equal(loaded.tensors[name], array)


def test_layers_come_in_order_however_many_there_are() -> None:
    models = CostModels(INFO, tiny_tensors())
    assert [weight.shape for weight, _ in models.layers("backward.4")] == [(3, 4), (3, 3), (4, 3)]
    assert [bias.shape for _, bias in models.layers("compute.table")] == [(8,), (5,)]


def test_the_engine_gets_networks_for_every_device_count() -> None:
    assert CostModels(INFO, tiny_tensors()).networks_for(1).device_counts == [2, 4]


def test_a_device_count_without_networks_is_an_error_that_lists_those_there_are() -> None:
    models = CostModels(INFO, tiny_tensors())
    models.require_device_count(4)
    with pytest.raises(InputError, match=r"'tiny'.* 8 devices; device counts they have: 2, 4"):
        models.require_device_count(8)


def test_another_batch_size_is_an_error_unless_allowed() -> None:
    models = CostModels(INFO, tiny_tensors())
    models.require_batch_size(1024)
    models.require_batch_size(2048, allow_mismatch=True)
    with pytest.raises(InputError, match=r"hold for batch size 1024, not 2048"):
        models.require_batch_size(2048)


def test_an_unknown_name_is_an_error_that_lists_the_shipped_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_models, "_SHIPPED_FOLDER", tmp_path)
    write(tmp_path / "one.safetensors", tiny_tensors())
    write(tmp_path / "two.safetensors", tiny_tensors())
    assert CostModels.load("one").device_counts == (2, 4)
    with pytest.raises(InputError, match=r"no cost models named 'three'; shipped: one, two"):
        CostModels.load("three")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.safetensors: cannot be read: no such file"):
        CostModels.load(str(tmp_path / "none.safetensors"))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (with_tensor("compute.set.1.bias", None), r"compute\.set\.1\.bias is missing"),
        (with_tensor("compute.table.0.weight", None), r"compute\.table\.0\.weight is missing"),
        (with_tensor("forward.4.feature_std", None), r"forward\.4\.feature_std is missing"),
        (with_tensor("surplus", np.zeros(1, np.float32)), r"'surplus' does not belong"),
        (with_tensor("forward.04.0.bias", np.zeros(1, np.float32)), r"does not belong"),
        (
            with_tensor("forward.1.0.weight", np.zeros((1, 2), np.float32)),
            r"device count 1 must lie between",
        ),
        (
            with_tensor("backward.8.0.bias", np.zeros(1, np.float32)),
            r"forward\.8\.0\.weight is missing",
        ),
        (
            with_tensor("compute.set.0.weight", np.zeros((6, 4), np.float32)),
            r"compute\.set\.0\.weight must have shape \[outputs, 5\], has \[6, 4\]",
        ),
        (
            with_tensor("compute.table.0.weight", np.zeros((0, 20), np.float32)),
            r"compute\.table\.0\.weight must have shape",
        ),
        (
            with_tensor("compute.table.0.bias", np.zeros((8, 1), np.float32)),
            r"compute\.table\.0\.bias must have shape \[8\], has \[8, 1\]",
        ),
        (
            with_tensor("compute.feature_mean", np.zeros(21, np.float32)),
            r"compute\.feature_mean must have shape \[20\]",
        ),
        (
            with_tensor("backward.2.0.bias", np.full(3, np.nan, np.float32)),
            r"backward\.2\.0\.bias holds values that are not finite",
        ),
        (
            with_tensor("forward.2.0.weight", np.full((7, 4), np.inf, np.float32)),
            r"forward\.2\.0\.weight holds values that are not finite",
        ),
        (
            with_tensor("compute.feature_std", np.zeros(20, np.float32)),
            r"compute\.feature_std must be positive",
        ),
        (
            with_tensor("backward.4.feature_std", -np.ones(4, np.float32)),
            r"backward\.4\.feature_std must be positive",
        ),
        (with_tensor("compute.set.1.bias", np.zeros(1)), r"compute\.set\.1\.bias must be of type"),
    ],
)
def test_unsound_tensors_are_refused_by_file_and_name(
    tmp_path: Path, tensors: dict[str, np.ndarray], message: str
) -> None:
    path = write(tmp_path / "bad.safetensors", tensors)
    with pytest.raises(InputError, match=rf"bad\.safetensors: .*{message}"):
        CostModels.load(path)


def test_a_last_layer_of_the_wrong_width_is_refused(tmp_path: Path) -> None:
    tensors = tiny_tensors()
    tensors["backward.4.2.weight"] = np.zeros((3, 3), np.float32)
    tensors["backward.4.2.bias"] = np.zeros(3, np.float32)
    path = write(tmp_path / "bad.safetensors", tensors)
    with pytest.raises(InputError, match=r"backward\.4\.2\.weight must have 4 outputs, has 3"):
        CostModels.load(path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "no metadata entry 'neuroshard'.*import-checkpoints"),
        ({"neuroshard": "{"}, "metadata"),
        ({"neuroshard": "[]"}, "metadata: .*object"),
        ({"neuroshard": json.dumps({"schema": "neuroshard/cost-models/9"})}, "metadata"),
    ],
)
def test_missing_or_malformed_metadata_is_refused(
    tmp_path: Path, metadata: dict[str, str], message: str
) -> None:
    path = write(tmp_path / "bad.safetensors", tiny_tensors(), metadata)
    with pytest.raises(InputError, match=rf"bad\.safetensors: {message}"):
        CostModels.load(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batch_size", 0),
        ("batch_size", 2.5),
        ("source", "guessed"),
        ("name", ""),
        ("hardware", 3),
        ("feature_names", ["dim"]),
        ("surplus", 1),
        ("trained_on", {"batch_sizes": [1, 2]}),
        ("trained_on", {**TRAINED_ON, "batch_sizes": [0, 2]}),
        ("trained_on", {**TRAINED_ON, "rows": [1.0, 1e301]}),
        ("trained_on", {**TRAINED_ON, "width": [-1.0, 4.0]}),
        ("trained_on", {**TRAINED_ON, "data_types": [""]}),
        (
            "errors",
            [
                {
                    "network": "compute",
                    "held_out": "samples",
                    "samples": 1,
                    "mape": -1.0,
                    "kendall": 0.5,
                    "mse": 0.0,
                }
            ],
        ),
    ],
)
def test_unsound_fields_of_the_metadata_are_refused(
    tmp_path: Path, field: str, value: object
) -> None:
    fields = {**msgspec.to_builtins(INFO), field: value}
    metadata = {"neuroshard": json.dumps(fields)}
    path = write(tmp_path / "bad.safetensors", tiny_tensors(), metadata)
    with pytest.raises(InputError, match=rf"bad\.safetensors: metadata: .*{field}"):
        CostModels.load(path)


DATA = {"part": "compute", "samples": 10}
TRAINING = {"command": "neuroshard pretrain", "seed": 0, "date": "2026", "versions": {}}
ERROR = {"network": "compute", "held_out": "samples", "samples": 1, "mape": 0.1, "mse": 0.1}


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("data", "part", "two\nlines"),
        ("data", "samples", 0),
        ("data", "source", "guessed"),
        ("data", "backend", "\x1b[31mred"),
        ("data", "hardware", "x" * 5000),
        ("data", "rounds", 0),
        ("data", "date", ""),
        ("data", "versions", {"torch": "2\r3"}),
        ("training", "command", "rm\x07"),
        ("training", "command", "x" * 5000),
        ("training", "seed", -1),
        ("training", "date", "\u202e"),
        ("training", "versions", {"\n": "1"}),
        ("errors", "network", "a\x00b"),
        ("errors", "samples", -1),
        ("errors", "kendall", 2.0),
        ("errors", "noise_floor", -0.5),
    ],
)
def test_provenance_that_cannot_be_printed_or_be_true_is_refused(
    tmp_path: Path, section: str, field: str, value: object
) -> None:
    sound = {"data": DATA, "training": TRAINING, "errors": {**ERROR, "kendall": None}}

    def load(changed: dict[str, object]) -> CostModels:
        given: dict[str, object] = {
            name: {**entry, **changed} if name == section else entry
            for name, entry in sound.items()
        }
        listed = {name: [given[name]] for name in ("data", "errors")}
        metadata = json.dumps({**msgspec.to_builtins(INFO), **given, **listed})
        path = write(tmp_path / "m.safetensors", tiny_tensors(), {"neuroshard": metadata})
        return CostModels.load(path)

    assert load({}).info.data[0].rounds is None
    with pytest.raises(InputError, match=rf"m\.safetensors: metadata: .*{field}"):
        load({field: value})


def test_a_truncated_file_is_refused_at_every_length(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.safetensors", tiny_tensors()).read_bytes()
    path = tmp_path / "cut.safetensors"
    for length in [*range(64), *range(64, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"cut\.safetensors: "):
            CostModels.load(path)


@pytest.mark.parametrize(
    "content",
    [
        b"not a safetensors file at all",
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 8) + b"\xff" * 8,
        struct.pack("<Q", 100_000) + b"[" * 100_000,
    ],
)
def test_a_hostile_header_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"hostile\.safetensors: not a sound safetensors file"):
        CostModels.load(path)


def test_a_folder_is_not_a_file_of_cost_models(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: not a file"):
        CostModels.load(tmp_path)


def test_saving_needs_the_suffix_and_a_folder(tmp_path: Path) -> None:
    models = CostModels(INFO, tiny_tensors())
    with pytest.raises(InputError, match=r"must end in \.safetensors"):
        models.save(tmp_path / "tiny.pt")
    with pytest.raises(InputError, match="cannot be written"):
        models.save(tmp_path / "nowhere" / "tiny.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_cannot_be_looked_at_is_an_input_error(tmp_path: Path) -> None:
    path = tmp_path / f"{'a' * 300}.safetensors"
    with pytest.raises(InputError, match="cannot be read"):
        CostModels.load(path)
    with pytest.raises(InputError, match="cannot be written"):
        cost_models.check_output(path)


@pytest.mark.parametrize(
    ("info", "tensors", "message"),
    [
        (None, {}, "info must be a CostModelsInfo, got None"),
        (INFO, None, "tensors must be a mapping of arrays by name, got None"),
        (INFO, {5: np.zeros(3, np.float32)}, "tensors have strings for names, got 5"),
        (INFO, {"compute.table.0.weight": [1.0]}, "0.weight must be an array of numpy"),
        (INFO, {"9" * 5000: np.zeros(3, np.float32)}, "tensor '9{1,60}… does not belong"),
    ],
)
def test_what_is_no_information_or_no_tensors_is_an_input_error(
    info: Any, tensors: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        CostModels(info, tensors)


def test_shared_communication_networks_serve_any_device_count(tmp_path: Path) -> None:
    CostModels(SHARED_INFO, shared_tensors()).save(tmp_path / "shared.safetensors")
    loaded = CostModels.load(tmp_path / "shared.safetensors")
    assert loaded.is_shared
    assert loaded.info.devices_per_node == 4
    for devices in (2, 3, 512):
        loaded.require_device_count(devices)
    with pytest.raises(InputError, match=r"for 1 devices; device counts they have: 2 to 65,536"):
        loaded.require_device_count(1)
    assert [weight.shape for weight, _ in loaded.layers("forward.shared.head")] == [(5, 9), (1, 5)]


def test_one_file_has_one_kind_of_communication_networks() -> None:
    with pytest.raises(InputError, match="shared communication networks and others for 2 devices"):
        CostModels(SHARED_INFO, {**shared_tensors(), **tiny_tensors()})


def test_devices_per_node_goes_with_shared_networks() -> None:
    with pytest.raises(InputError, match="devices_per_node is missing"):
        CostModels(INFO, shared_tensors())
    with pytest.raises(InputError, match="devices_per_node is given, but"):
        CostModels(SHARED_INFO, tiny_tensors())
    with pytest.raises(InputError, match="devices_per_node must lie between"):
        msgspec.structs.replace(SHARED_INFO, devices_per_node=0)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("backward.shared.head.1.bias", None, "tensor backward.shared.head.1.bias is missing"),
        ("forward.shared.feature_mean", None, "tensor forward.shared.feature_mean is missing"),
        (
            "forward.shared.feature_std",
            np.zeros(8, np.float32),
            "tensor forward.shared.feature_std must be positive",
        ),
        (
            "forward.shared.device.0.weight",
            np.ones((6, 7), np.float32),
            r"forward.shared.device.0.weight must have shape \[outputs, 8\]",
        ),
        (
            "forward.shared.head.0.weight",
            np.ones((5, 6), np.float32),
            r"forward.shared.head.0.weight must have shape \[outputs, 9\]",
        ),
        ("forward.shared.0.weight", np.ones((1, 1), np.float32), "does not belong"),
        ("forward.shared.other.0.weight", np.ones((1, 1), np.float32), "does not belong"),
    ],
)
def test_unsound_shared_networks_are_refused(
    name: str, array: np.ndarray | None, message: str
) -> None:
    tensors = shared_tensors()
    if array is None:
        del tensors[name]
    else:
        tensors[name] = array
    with pytest.raises(InputError, match=message):
        CostModels(SHARED_INFO, tensors)
