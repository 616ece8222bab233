"""Entry point of the ``neuroshard`` command."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from neuroshard_fast.errors import NeuroShardError

# Each module has NAME, HELP, add_arguments(parser) and run(args); none imports torch on its own.
_COMMANDS = (
    "plan",
    "replan",
    "simulate",
    "evaluate",
    "models",
    "generate",
    "import_tables",
    "import_checkpoints",
    "profile",
    "pretrain",
    "refine",
    "schema",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, or that of the error (see :mod:`neuroshard_fast.errors`)."""
    try:
        status = _run(arguments)
        sys.stdout.flush()  # here, where a reader that has gone is caught
        return status
    except NeuroShardError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except MemoryError:
        print("error: out of memory", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (as `| head` does): nothing is left to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(arguments: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(
        prog="neuroshard",
        description="Plan which embedding tables, and which of their columns, go on which device.",
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in _COMMANDS:
        command = importlib.import_module(f"neuroshard_fast.cli.{name}")
        subparser = subparsers.add_parser(command.NAME, help=command.HELP, description=command.HELP)
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    args = parser.parse_args(arguments)
    return int(args.run(args))


if __name__ == "__main__":
    sys.exit(main())
