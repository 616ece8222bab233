"""``neuroshard schema``: print the JSON Schema of a file format."""

from __future__ import annotations

import argparse

NAME = "schema"
HELP = "print the JSON Schema of a file format"

_FORMATS = ("table-set", "cluster", "options", "plan", "simulation", "evaluation")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("format", choices=_FORMATS)


def run(args: argparse.Namespace) -> int:
    """Print the schema."""
    import msgspec

    from neuroshard_fast.cluster import Cluster
    from neuroshard_fast.options import SearchOptions
    from neuroshard_fast.plan import ShardingPlan
    from neuroshard_fast.profile.evaluation import Evaluation
    from neuroshard_fast.simulation import SimulationReport
    from neuroshard_fast.tables import TableSet

    structs = (TableSet, Cluster, SearchOptions, ShardingPlan, SimulationReport, Evaluation)
    types = dict(zip(_FORMATS, structs, strict=True))
    schema = msgspec.json.schema(types[args.format])
    print(msgspec.json.format(msgspec.json.encode(schema), indent=2).decode())
    return 0
