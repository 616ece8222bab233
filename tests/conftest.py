"""Fixtures that several test files share."""

from __future__ import annotations

from pathlib import Path

import pytest

from golden_models import GOLDEN, GOLDEN_DEVICE_COUNTS, import_golden_models

__all__ = ["GOLDEN", "GOLDEN_DEVICE_COUNTS"]


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of cases with right answers (its README says how they were made)."""
    return GOLDEN


@pytest.fixture(scope="session")
def golden_models(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden checkpoints as one file of cost models, made by ``neuroshard import-checkpoints``."""
    path = tmp_path_factory.mktemp("golden") / "models.safetensors"
    import_golden_models(path)
    return path
