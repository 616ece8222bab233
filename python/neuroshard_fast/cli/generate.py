"""``neuroshard generate``: write an example table set or index dump."""

from __future__ import annotations

import argparse

from neuroshard_fast.cli.common import output

NAME = "generate"
HELP = "write an example table set, or an index dump like the public DLRM data"

_FIXED = ("mlperf-dlrm-dcnv2", "production")
_DLRM_YEARS = {"dlrm-2021": 2021, "dlrm-2022": 2022}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    from typing import get_args

    from neuroshard_fast.tables import DataType

    parser.add_argument("example", choices=[*_FIXED, *_DLRM_YEARS, "broad"], help="what to write")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        type=output,
        metavar="FILE",
        help="table set (.json or .yaml), or for dlrm-* an index dump (.pt or .pt.gz; needs torch)",
    )
    parser.add_argument("--tables", type=int, metavar="N", help="dlrm-*, broad: number of tables")
    parser.add_argument(
        "--batch-size", type=int, metavar="B", help="dlrm-*, broad: samples of the batch"
    )
    parser.add_argument(
        "--max-rows", type=int, metavar="R", help="dlrm-*, broad: rows of the largest table"
    )
    parser.add_argument(
        "--data-type",
        choices=get_args(DataType),
        help="of the weights (default: fp32, or as the example has it)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed (default 0)")


def run(args: argparse.Namespace) -> int:
    """Write the example."""
    import msgspec

    from neuroshard_fast import examples
    from neuroshard_fast.errors import InputError
    from neuroshard_fast.tables import TableSet

    sizes = {"tables": args.tables, "batch_size": args.batch_size, "max_rows": args.max_rows}
    if args.example in _FIXED and any(size is not None for size in sizes.values()):
        raise InputError(f"--tables, --batch-size and --max-rows do not apply to {args.example}")
    dump = args.output.endswith((".pt", ".pt.gz"))
    if dump and args.example not in _DLRM_YEARS:
        raise InputError(f"{args.output}: index dumps are made for dlrm-2021 and dlrm-2022 only")
    if dump and args.data_type is not None:
        raise InputError(f"--data-type does not apply to index dumps ({args.output})")
    if args.example in _DLRM_YEARS:
        drawn = examples.DlrmLike.draw(_DLRM_YEARS[args.example], **sizes, seed=args.seed)
        if dump:
            drawn.write_index_dump(args.output)
            print(f"wrote {args.output}")
            return 0
        tables = drawn.table_set()
    elif args.example == "mlperf-dlrm-dcnv2":
        tables = examples.mlperf_dlrm_dcnv2()
    elif args.example == "production":
        tables = examples.production_like(args.seed)
    else:
        given = {name: size for name, size in sizes.items() if size is not None}
        tables = examples.broad(**given, seed=args.seed)
    if args.data_type is not None:
        typed = [msgspec.structs.replace(table, data_type=args.data_type) for table in tables]
        tables = TableSet.of(typed)
    tables.save(args.output)
    print(f"wrote {args.output}")
    return 0
