"""Fuzzes the reader of cost-model files: mutates a sound one; only NeuroShardError may come out.

python fuzz/fuzz_cost_models.py [--seconds 60] [--seed 1]
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from neuroshard_fast.cost_models import CostModels, CostModelsInfo
from neuroshard_fast.doubts import TrainedOn
from neuroshard_fast.errors import NeuroShardError
from neuroshard_fast.features import PHYSICAL_FEATURES

INFO = CostModelsInfo(name="tiny", source="measured", hardware="a fuzzer", batch_size=1024)
TRAINED_ON = TrainedOn(
    batch_sizes=(256, 2048),
    data_types=("fp32",),
    optimizers=("sgd",),
    rows=(10.0, 1e6),
    width=(4.0, 128.0),
    pooling_factor=(1.0, 100.0),
    reuse=(1.0, 1000.0),
    device_tables=(1.0, 24.0),
    device_lookups=(10.0, 1e6),
    device_read_bytes=(1e3, 1e9),
    device_counts=(2, 4),
    sent_bytes=(1e3, 1e8),
    wait_ms=(0.0, 10.0),
)
NUMBERS = (0, 1, -1, 2, 3, 4, 8, 2**31, 2**32, 2**53, 2**63 - 1, 2**64, 10**30, 0.5, 1e308)
VALUES: tuple[Any, ...] = (
    *NUMBERS,
    None,
    True,
    "",
    "F32",
    "F64",
    "BF16",
    "I8",
    "\x00",
    "x" * 1000,
    [],
    [0],
    {},
)
# Bit patterns of fp32 numbers: infinity, a quiet and a signalling NaN, the smallest and the largest.
PATTERNS = (0x7F800000, 0x7FC00000, 0x7F800001, 0x00000001, 0x7F7FFFFF, 0xFF800000, 0x80000000)


# Inputs and outputs of each network.
PER_COUNT = {
    "compute.table": (20, 2),
    "compute.set": (2, 1),
    "forward.2": (4, 2),
    "backward.2": (2, 2),
}
SHARED_WITH_DOUBT = {
    "compute.table": (len(PHYSICAL_FEATURES), 2),
    "compute.set": (2, 2),
    "forward.shared.device": (8, 2),
    "forward.shared.head": (6, 2),
    "backward.shared.device": (7, 2),
    "backward.shared.head": (6, 2),
}


def sound_file(folder: Path, networks: dict[str, tuple[int, int]]) -> bytes:
    """Cost models whose networks have one layer each."""

    def zeros(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return np.zeros(shape, np.float32)

    tensors: dict[str, np.ndarray[Any, np.dtype[np.float32]]] = {}
    for network, (inputs, outputs) in networks.items():
        tensors |= {
            f"{network}.0.weight": zeros(outputs, inputs),
            f"{network}.0.bias": zeros(outputs),
        }
    statistics = {
        network.removesuffix(".device").removesuffix(".table"): inputs
        for network, (inputs, _) in networks.items()
        if not network.endswith((".head", ".set"))
    }
    for network, inputs in statistics.items():
        tensors[f"{network}.feature_mean"] = zeros(inputs)
        tensors[f"{network}.feature_std"] = zeros(inputs) + 1
    path = folder / "sound.safetensors"
    info = INFO
    if networks is SHARED_WITH_DOUBT:
        info = msgspec.structs.replace(
            INFO, devices_per_node=2, feature_names=PHYSICAL_FEATURES, trained_on=TRAINED_ON
        )
    CostModels(info, tensors).save(path)
    return path.read_bytes()


def mutate_json(value: Any, rng: random.Random) -> Any:
    """The value with one place in it changed."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        action = rng.randrange(8)
        changed = dict(value)
        if action == 0:
            del changed[key]
        elif action == 1:
            changed[
                rng.choice(["", "x", "compute.table.1.weight", "forward.3.0.bias", key * 2])
            ] = changed[key] if rng.random() < 0.5 else changed.pop(key)
        else:
            changed[key] = mutate_json(value[key], rng)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.9:
        index = rng.randrange(len(value))
        return [*value[:index], mutate_json(value[index], rng), *value[index + 1 :]]
    if isinstance(value, int) and rng.random() < 0.5:
        return value + rng.choice([-4, -1, 1, 4])
    if isinstance(value, str) and rng.random() < 0.5:
        return mutate_text(value, rng)
    return rng.choice(VALUES)


def mutate_text(text: str, rng: random.Random) -> str:
    """Text, such as JSON in the metadata, changed as JSON if it is some."""
    try:
        return json.dumps(mutate_json(json.loads(text), rng))
    except ValueError:
        at = rng.randrange(len(text) + 1)
        return text[:at] + rng.choice(["", "0", "9", "é", "\u2028", "[" * 500]) + text[at + 1 :]


def mutate(content: bytes, rng: random.Random) -> bytes:
    length = struct.unpack("<Q", content[:8])[0]
    action = rng.randrange(4)
    if action == 0:  # any bytes
        changed = bytearray(content)
        for _ in range(rng.randrange(1, 5)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        return bytes(changed)
    if action == 1:  # cut short or too long
        return content[: rng.randrange(len(content))] + bytes(rng.choice([0, 0, 1, 4, 100]))
    if action == 2:  # numbers
        data = bytearray(content)
        at = 8 + length + 4 * rng.randrange((len(content) - 8 - length) // 4)
        data[at : at + 4] = struct.pack("<I", rng.choice([*PATTERNS, rng.getrandbits(32)]))
        return bytes(data)
    header = json.loads(content[8 : 8 + length])
    for _ in range(rng.randrange(1, 4)):
        header = mutate_json(header, rng)
    encoded = json.dumps(header).encode()
    stated = len(encoded) if rng.random() < 0.9 else rng.choice([0, 1, 2**31, 2**63, 2**64 - 1])
    return struct.pack("<Q", stated) + encoded + content[8 + length :]


def is_sound(path: Path) -> bool:
    """Whether the reader takes the file; RuntimeError for what must not happen."""
    try:
        models = CostModels.load(path)
        counts = None if models.is_shared else list(models.device_counts)
        for doubt_penalty in (0.0, 1.0):
            networks = models.networks_for(models.info.batch_size, doubt_penalty)
            if networks.device_counts != counts:
                raise RuntimeError("the networks are for other device counts than the file")
    except NeuroShardError as error:
        if str(path) not in str(error):
            raise RuntimeError("the error does not name the file") from error
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)  # noqa: S311
    runs = sound = 0
    with tempfile.TemporaryDirectory() as folder:
        originals = [sound_file(Path(folder), kind) for kind in (PER_COUNT, SHARED_WITH_DOUBT)]
        path = Path(folder) / "mutant.safetensors"
        end = time.monotonic() + arguments.seconds
        while time.monotonic() < end:
            mutant = mutate(rng.choice(originals), rng)
            path.write_bytes(mutant)
            try:
                sound += is_sound(path)
            except BaseException:
                traceback.print_exc()
                Path("crash-input").write_bytes(mutant)
                raise SystemExit("the input is in crash-input") from None
            runs += 1
    print(f"{runs} inputs in {arguments.seconds:g} s, seed {arguments.seed}; {sound} were sound")


if __name__ == "__main__":
    main()
