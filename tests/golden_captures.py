"""Writes captures of golden tasks, three sizes, published options, for the programs without Python.

python tests/golden_captures.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from neuroshard_fast import _core
from test_engine import golden_networks, golden_tasks

SIZES = {"51x4": ("4_gpu", 51), "195x16": ("16_gpu", 195), "1000x128": ("128_gpu", 1000)}
OPTIONS = {"beam_width": 3, "candidates": 10, "max_splits": 10, "grid_steps": 11, "threads": 1}


def write_golden_captures(folder: Path) -> dict[str, Path]:
    """The files, by tables x devices."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for size, (tasks, tables) in SIZES.items():
        task = next(task for task in golden_tasks(tasks) if task.problem.tables == tables)
        plan = _core.search(golden_networks(), task.problem, **OPTIONS)
        capture = _core.write_capture(golden_networks(), task.problem, plan, **OPTIONS)
        paths[size] = folder / f"{size}.capture"
        paths[size].write_bytes(capture)
    return paths


if __name__ == "__main__":
    for path in write_golden_captures(Path(sys.argv[1])).values():
        print(path)
