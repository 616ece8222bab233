"""``neuroshard profile``: measure, or simulate, the costs that cost models are trained from."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from neuroshard_fast.cli.common import output, whole_numbers

if TYPE_CHECKING:
    from neuroshard_fast.cost_data import CostDataInfo

NAME = "profile"
HELP = "measure fused lookups and all-to-alls, to train cost models from"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parts = parser.add_subparsers(dest="part", metavar="PART", required=True)
    compute = parts.add_parser(
        "compute", help="fused lookups of one device: DATA/compute", description="Fused lookups."
    )
    compute.add_argument("tables", metavar="TABLES", help="table set to draw from, JSON or YAML")
    _add_common(compute, samples=10000)
    compute.add_argument(
        "--memory", default="2GiB", help="most that the tables of a sample take (default: 2GiB)"
    )
    compute.add_argument(
        "--backend",
        choices=("auto", "fbgemm", "embedding-bag", "simulated"),
        default="auto",
        help="default: FBGEMM where it is installed",
    )
    compute.add_argument(
        "--dims",
        type=whole_numbers,
        metavar="N,N,…",
        help="take every table with each of these dims (default: 4, 8, 16, … up to 128 or the largest)",
    )
    compute.add_argument(
        "--most-tables", type=int, default=15, help="most tables of a sample (default: 15)"
    )
    compute.add_argument(
        "--held-out",
        action="store_true",
        help="write DATA/compute_heldout: other tables, to test cost models on",
    )
    comm = parts.add_parser(
        "comm", help="all-to-alls between devices: DATA/comm_D", description="All-to-alls."
    )
    comm.add_argument("--devices", type=int, required=True, help="number of devices")
    _add_common(comm, samples=2000)
    comm.add_argument(
        "--backend",
        choices=("auto", "simulated"),
        default="auto",
        help="default: NCCL where there is a GPU, else gloo",
    )


def _add_common(parser: argparse.ArgumentParser, samples: int) -> None:
    parser.add_argument(
        "-o", "--output", type=output, metavar="DATA", required=True, help="folder to fill"
    )
    parser.add_argument(
        "--samples", type=int, default=samples, help=f"at most 1000000 (default: {samples})"
    )
    parser.add_argument("--batch-size", type=int, required=True, help="global batch size")
    parser.add_argument("--seed", type=int, default=0, help="seed of the samples (default: 0)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds of each sample, some time apart (default: 3)"
    )
    parser.add_argument(
        "--label",
        default="",
        help="of the conditions, such as 4096_fp16: fill compute-LABEL or comm_D-LABEL",
    )
    parser.add_argument("--hardware", help="what to simulate: a100, h100 or h200")


def run(args: argparse.Namespace) -> int:
    """Measure or simulate until the folder is full, and say what is in it."""
    from neuroshard_fast.cost_data import read_communication, read_compute
    from neuroshard_fast.errors import InputError
    from neuroshard_fast.profile.communication import profile_communication
    from neuroshard_fast.profile.compute import profile_compute
    from neuroshard_fast.tables import TableSet
    from neuroshard_fast.units import parse_bytes

    if (args.backend == "simulated") != (args.hardware is not None):
        raise InputError("--backend simulated and --hardware go together")
    if args.part == "comm":
        filled = profile_communication(
            args.output,
            devices=args.devices,
            samples=args.samples,
            batch_size=args.batch_size,
            seed=args.seed,
            rounds=args.rounds,
            hardware=args.hardware,
            label=args.label,
        )
        if filled is not None:
            comm = read_communication(filled)
            floors = {
                " of forward costs": comm.noise_floor_forward,
                " of backward costs": comm.noise_floor_backward,
            }
            print(_summary(f"{len(comm.dims)} all-to-alls", filled, comm.info, floors))
        return 0
    filled = profile_compute(
        TableSet.load(args.tables),
        args.output,
        samples=args.samples,
        batch_size=args.batch_size,
        memory_bytes=parse_bytes(args.memory),
        seed=args.seed,
        rounds=args.rounds,
        backend="auto" if args.hardware else args.backend,
        hardware=args.hardware,
        held_out=args.held_out,
        dims=args.dims,
        most_tables=args.most_tables,
        label=args.label,
    )
    compute = read_compute(filled)
    floors = {"": compute.noise_floor}
    print(_summary(f"{len(compute.costs)} sets of tables", filled, compute.info, floors))
    return 0


def _summary(
    samples: str, folder: Path, info: CostDataInfo | None, floors: dict[str, float | None]
) -> str:
    """What is in ``folder`` now; ``floors``: noise floors by what they are of."""
    parts = [f"{folder}: {samples}"]
    if info is not None:
        parts.append(
            f"SIMULATED {info.hardware}"
            if info.source == "simulated"
            else f"measured on {info.hardware}, {info.rounds} rounds each"
        )
    parts += [f"noise floor{of} {floor:.2%}" for of, floor in floors.items() if floor is not None]
    return "; ".join(parts)
