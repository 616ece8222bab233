"""Arguments that several commands share."""

from __future__ import annotations

import argparse

from neuroshard_fast import config
from neuroshard_fast.cluster import Cluster
from neuroshard_fast.errors import InputError
from neuroshard_fast.options import ALGORITHMS, SearchOptions
from neuroshard_fast.units import parse_bytes

_DEFAULTS = SearchOptions()


def output(text: str) -> str:
    """An argparse type: the name of a file or folder to write."""
    if not text:
        raise argparse.ArgumentTypeError("must name what to write, got an empty name")
    return text


def whole_numbers(text: str) -> tuple[int, ...]:
    """An argparse type: whole numbers with commas between them."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be whole numbers with commas between them, such as 128,32; got {text[:60]!r}"
        ) from None


def check_outputs(*paths: str | None) -> None:
    """InputError where one of the files that were asked for cannot be written; for before long work."""
    given = [path for path in paths if path is not None]
    for path in given:
        config.output_file(path)
        if given.count(path) > 1:
            raise InputError(f"{path}: two outputs cannot be the same file; give each its own")


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """The devices to plan for, as in :class:`Cluster`."""
    parser.add_argument("--devices", type=int, required=True, help="number of devices")
    parser.add_argument(
        "--memory", required=True, help="memory of a device for tables, such as 80GiB"
    )
    parser.add_argument(
        "--batch-size", type=int, help="global batch size; default: that of the cost models"
    )


def cluster(args: argparse.Namespace) -> Cluster:
    """The devices that were given."""
    return Cluster(
        world_size=args.devices,
        memory_bytes=parse_bytes(args.memory),
        batch_size=args.batch_size,
    )


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of a search, as in :class:`SearchOptions`."""
    group = parser.add_argument_group("search")
    group.add_argument("--algorithm", choices=ALGORITHMS, default=_DEFAULTS.algorithm)
    group.add_argument(
        "--beam-width", type=int, default=_DEFAULTS.beam_width, help="split sequences kept a round"
    )
    group.add_argument(
        "--candidates",
        type=int,
        default=_DEFAULTS.candidates,
        help="largest and dearest shards tried for a split, each so many",
    )
    group.add_argument(
        "--max-splits", type=int, default=_DEFAULTS.max_splits, help="most column splits in a plan"
    )
    group.add_argument(
        "--grid-steps", type=int, default=_DEFAULTS.grid_steps, help="dimension factors tried"
    )
    group.add_argument("--threads", type=int, default=_DEFAULTS.threads, help="engine threads")
    group.add_argument(
        "--seed", type=int, default=_DEFAULTS.seed, help="of the algorithms 'auto' and 'random'"
    )
    group.add_argument(
        "--deadline-ms", type=float, help="how long algorithm 'auto' may take; it takes all of it"
    )
    group.add_argument(
        "--max-evaluations",
        type=int,
        help="plans that algorithm 'auto' evaluates; in place of a deadline, for the same answer every time",
    )
    group.add_argument(
        "--doubt-penalty",
        type=float,
        default=_DEFAULTS.doubt_penalty,
        help="share of the cost models' doubt to count as cost: 0 (default) to 10; 1 plans with costs that "
        "nine of ten stay below",
    )
    group.add_argument(
        "--allow-batch-mismatch",
        action="store_true",
        help="plan although the cost models were made for another batch size",
    )


def search_options(args: argparse.Namespace) -> SearchOptions:
    """The search options that were given."""
    return SearchOptions(
        algorithm=args.algorithm,
        beam_width=args.beam_width,
        candidates=args.candidates,
        max_splits=args.max_splits,
        grid_steps=args.grid_steps,
        threads=args.threads,
        seed=args.seed,
        doubt_penalty=args.doubt_penalty,
        allow_batch_mismatch=args.allow_batch_mismatch,
        deadline_ms=args.deadline_ms,
        max_evaluations=args.max_evaluations,
    )
