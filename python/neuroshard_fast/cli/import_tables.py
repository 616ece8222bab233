"""``neuroshard import-tables``: make a table set of files that the published tools write."""

from __future__ import annotations

import argparse

from neuroshard_fast.cli.common import output

NAME = "import-tables"
HELP = "make a table set of a published table_configs.json, task file or index dump"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "file",
        metavar="FILE",
        help="table_configs.json, or an index dump (.pt or .pt.gz; needs torch)",
    )
    parser.add_argument(
        "-o", "--output", required=True, type=output, metavar="TABLES", help=".json or .yaml"
    )
    parser.add_argument(
        "--dim", type=int, help="embedding dim of tables whose dim the file does not tell"
    )
    parser.add_argument("--tasks", metavar="TASKS", help="take tables and dims from a task file")
    parser.add_argument("--line", type=int, help="which line of TASKS (default 1)")


def run(args: argparse.Namespace) -> int:
    """Read FILE, write TABLES."""
    from neuroshard_fast import published
    from neuroshard_fast.checks import whole_number
    from neuroshard_fast.errors import InputError

    if args.line is not None and args.tasks is None:
        raise InputError("--line is that of a task file: give one with --tasks")
    if args.file.endswith((".pt", ".pt.gz")):
        if args.tasks is not None:
            raise InputError("--tasks goes with a table_configs.json, not with an index dump")
        if args.dim is None:
            raise InputError(f"{args.file}: an index dump does not tell embedding dims: give --dim")
        tables = published.read_index_dump(args.file, dim=args.dim)
    elif args.tasks is not None:
        if args.dim is not None:
            raise InputError("--dim does not apply with --tasks: the task file has dims")
        tasks = published.read_tasks(args.tasks, args.file)
        line = 1 if args.line is None else args.line
        whole_number(line, f"--line of {args.tasks}", low=1, high=len(tasks))
        tables = tasks[line - 1]
    else:
        tables = published.read_table_configs(args.file).table_set(args.dim)
    tables.save(args.output)
    print(f"wrote {len(tables)} tables to {args.output}")
    return 0
