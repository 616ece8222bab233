"""Fixtures that several test files share."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuroshard_fast.cli.main import main

GOLDEN = Path(__file__).parent / "golden"
GOLDEN_DEVICE_COUNTS = (2, 4, 8, 16, 128)


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of cases with right answers (its README says how they were made)."""
    return GOLDEN


@pytest.fixture(scope="session")
def golden_models(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden checkpoints as one file of cost models, made by ``neuroshard import-checkpoints``."""
    path = tmp_path_factory.mktemp("golden") / "models.safetensors"
    arguments = ["import-checkpoints", "--compute", str(golden / "models/compute.pt")]
    for devices in GOLDEN_DEVICE_COUNTS:
        arguments += ["--forward", str(golden / f"models/comm_{devices}_fw.pt")]
        arguments += ["--backward", str(golden / f"models/comm_{devices}_bw.pt")]
    assert main([*arguments, "-o", str(path)]) == 0
    return path
