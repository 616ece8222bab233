"""The golden checkpoints as one file of cost models."""

from __future__ import annotations

from pathlib import Path

from neuroshard_fast.cli.main import main

GOLDEN = Path(__file__).parent / "golden"
GOLDEN_DEVICE_COUNTS = (2, 4, 8, 16, 128)


def import_golden_models(path: Path) -> None:
    """Write them to ``path``, with ``neuroshard import-checkpoints``."""
    arguments = ["import-checkpoints", "--compute", str(GOLDEN / "models/compute.pt")]
    for devices in GOLDEN_DEVICE_COUNTS:
        arguments += ["--forward", str(GOLDEN / f"models/comm_{devices}_fw.pt")]
        arguments += ["--backward", str(GOLDEN / f"models/comm_{devices}_bw.pt")]
    assert main([*arguments, "-o", str(path)]) == 0
