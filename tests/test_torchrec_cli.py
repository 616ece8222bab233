"""``neuroshard plan --torchrec``, and what is left of the package where TorchRec is not installed."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torchrec")

from neuroshard_fast import EmbeddingTable, Feature, InputError, TableSet
from neuroshard_fast.cli.main import main
from neuroshard_fast.torchrec import TorchRecPlan
from torchrec_cases import table_bytes

BAD_INPUT, INFEASIBLE, MISSING = 2, 3, 4
_NUMBERS = itertools.count()

MODEL = """
import torch
from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

META = torch.device("meta")


def build():
    bags = [
        EmbeddingBagConfig(name=f"t{k}", num_embeddings=100_000, embedding_dim=64, feature_names=[f"f{k}"])
        for k in range(3)
    ]
    sequence = EmbeddingConfig(name="s", num_embeddings=1000, embedding_dim=16, feature_names=["s"])
    return nn.ModuleDict(
        {
            "bags": EmbeddingBagCollection(tables=bags, device=META),
            "deep": nn.Sequential(EmbeddingCollection(tables=[sequence], device=META)),
        }
    )


def with_constraints():
    one = ParameterConstraints(sharding_types=["data_parallel"], pooling_factors=[7.0])
    return build(), {"t1": one}


def badly_constrained():
    return build(), {"t1": ParameterConstraints(sharding_types=["diagonal"])}


def all_of_cpus():
    constraints = {f"t{k}": ParameterConstraints(device_group="cpu") for k in range(3)}
    return build(), {**constraints, "s": ParameterConstraints(device_group="cpu")}


def leaving():
    raise SystemExit(0)


def dense():
    return nn.Linear(2, 2, device=META)


def number():
    return 7


def failing():
    raise LookupError("no such thing")


SOMETHING = 7
"""
TABLES = ["bags.t0", "bags.t1", "bags.t2", "deep.0.s"]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of models in the working folder, by a name of its own."""
    name = f"models_of_a_test_{next(_NUMBERS)}"
    (tmp_path / f"{name}.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return name


def plan(source: str, *options: str, devices: int = 2, memory: str = "1GiB") -> int:
    """The exit code of planning it into plan.json."""
    arguments = ["plan", "--torchrec", source, "--devices", str(devices), "--memory", memory]
    return main([*arguments, "-o", "plan.json", *options])


def one_error(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed where nothing was planned."""
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert "Traceback" not in printed.err
    assert not Path("plan.json").exists()
    return printed.err


# ---- plans ----


def test_a_model_is_planned_printed_and_written(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(f"{module}:build", devices=4) == 0
    found = TorchRecPlan.load("plan.json")
    assert [table.fqn for table in found.tables] == TABLES
    assert (found.compute_device, found.world_size, found.local_world_size) == ("cuda", 4, 4)
    assert found.batch_size == 65536 // 4  # that of the cost models
    assert found.cost_models.name == "h100-sim"
    printed = capsys.readouterr().out
    assert f"predicted cost {found.cost_ms:.3f} ms a step on 4 ranks (cuda)" in printed
    assert "SIMULATED" in printed
    for table in TABLES:
        assert f"\n{table}: " in printed
    assert "plan written to plan.json" in printed


def test_statistics_of_the_models_batches_are_planned_with(module: str) -> None:
    tables = [
        EmbeddingTable(
            name=name,
            num_embeddings=rows,
            embedding_dim=dim,
            features=(Feature(name=feature, pooling_factor=30.0),),
        )
        for name, rows, dim, feature in (
            *((f"t{k}", 100_000, 64, f"f{k}") for k in range(3)),
            ("s", 1000, 16, "s"),
        )
    ]
    TableSet.of(tables).save("stats.json")
    assert plan(f"{module}:build") == 0
    without = TorchRecPlan.load("plan.json")
    assert plan(f"{module}:build", "--table-stats", "stats.json") == 0
    found = TorchRecPlan.load("plan.json")
    assert without.assumed_pooling == tuple(TABLES)
    assert found.assumed_pooling == ()
    assert found.cost_ms is not None
    assert without.cost_ms is not None
    assert found.cost_ms > 2 * without.cost_ms
    assert plan(f"{module}:build", "--table-stats", "missing.json") == InputError.exit_code


def test_without_a_file_the_plan_is_printed_only(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--torchrec", f"{module}:build", "--devices=2", "--memory=1GiB"]) == 0
    printed = capsys.readouterr().out
    assert "predicted cost" in printed
    assert "written" not in printed
    assert [path.name for path in Path().iterdir()] == [f"{module}.py"]


def test_a_factory_may_return_constraints_too(module: str) -> None:
    assert plan(f"{module}:with_constraints") == 0
    found = TorchRecPlan.load("plan.json")
    types = {table.fqn: table.sharding_type for table in found.tables}
    assert types["bags.t1"] == "data_parallel"
    assert found.assumed_pooling == ("bags.t0", "bags.t2", "deep.0.s")


def test_models_are_planned_for_cpus_by_measured_cost_models(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(f"{module}:build", "--compute-device=cpu", "--batch-size=1000") == 0
    found = TorchRecPlan.load("plan.json")
    assert (found.compute_device, found.memory_kind, found.batch_size) == ("cpu", "DDR", 500)
    assert found.cost_models.name == "cpu-fbgemm"
    assert "SIMULATED" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "local"), [((), 8), (("--local-devices", "4"), 4), (("--local-devices", "16"), 16)]
)
def test_hosts_have_eight_devices_unless_it_is_said(
    options: tuple[str, ...], local: int, module: str
) -> None:
    assert plan(f"{module}:build", *options, devices=16) == 0
    assert TorchRecPlan.load("plan.json").local_world_size == local


def test_memory_and_search_options_are_those_given(module: str) -> None:
    memory = int(2.2 * table_bytes(100_000, 64, 2))
    options = ("--batch-size=4096", "--cost-models=h200-sim", "--threads=2", "--max-splits=3")
    assert plan(f"{module}:build", *options, memory=f"{memory}B") == 0
    found = TorchRecPlan.load("plan.json")
    assert found.cost_models.name == "h200-sim"
    assert found.batch_size == 2048
    for load in found.ranks:
        # TorchRec's default reservation keeps 15% and batches.
        assert 0.8 * memory < load.cap_bytes < 0.85 * memory
        assert max(load.estimated_bytes, load.training_bytes) <= load.cap_bytes


# ---- what is refused ----


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{}", ["must be MODULE:FACTORY", "my_model:build"]),
        (":build", ["must be MODULE:FACTORY"]),
        ("{}:", ["must be MODULE:FACTORY"]),
        ("no_such_module:build", ["no_such_module:build", "ModuleNotFoundError"]),
        ("{}:no_such_function", ["no_such_function", "AttributeError"]),
        ("{}:failing", ["{}:failing", "LookupError", "no such thing"]),
        ("{}:leaving", ["{}:leaving", "SystemExit: 0"]),
        (
            "{}:all_of_cpus",
            [
                "{}:all_of_cpus",
                "no table is left to plan for cuda",
                "device_group",
                "bags.t0 to cpu",
            ],
        ),
        ("{}:SOMETHING", ["{}:SOMETHING", "TypeError"]),
        ("{}:number", ["{}:number", "torch.nn.Module is wanted, got a int"]),
        ("{}:dense", ["{}:dense", "no table to plan"]),
        ("{}:build.inner", ["build.inner", "AttributeError"]),
    ],
)
def test_what_makes_no_model_is_refused_by_name(
    source: str, words: list[str], module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(source.format(module)) == BAD_INPUT
    error = one_error(capsys)
    for word in words:
        assert word.format(module) in error


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--plot=load.png"], ["--plot is not for --torchrec"]),
        (["--capture=call.bin"], ["--capture is not for --torchrec"]),
        (["--local-devices=3"], ["--local-devices must divide the 2 devices, got 3"]),
        (["--local-devices=0"], ["--local-devices must divide"]),
        (["--batch-size=4097"], ["--batch-size", "multiple of the 2 devices, got 4097"]),
        (["--batch-size=0"], ["--batch-size", "got 0"]),
        (["--batch-size=100"], ["h100-sim", "4096 to 131072, not 100", "--allow-batch-mismatch"]),
        (["--devices=0"], ["--devices must lie between 1", "got 0"]),
        (["--memory=80"], ["memory size '80'"]),
        (["--algorithm=random"], ["algorithm 'random'"]),
        (["--cost-models=no-such-models"], ["no-such-models"]),
        (["--compute-device=cpu", "--batch-size=4096"], ["cpu-fbgemm", "2048, not 4096"]),
        (["-o", "no/such/folder/plan.json"], ["no/such/folder/plan.json", "cannot be written"]),
    ],
)
def test_options_that_cannot_be_met_are_refused_by_name(
    options: list[str], words: list[str], module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(f"{module}:build", *options) == BAD_INPUT
    error = one_error(capsys)
    for word in words:
        assert word in error


def test_a_model_that_does_not_fit_and_a_constraint_that_cannot_be_met_have_a_code_of_their_own(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(f"{module}:build", memory="64MiB") == INFEASIBLE
    assert "the smallest change that would fit: " in one_error(capsys)
    assert plan(f"{module}:badly_constrained") == INFEASIBLE
    assert "table 'bags.t1': constraint sharding_types: 'diagonal'" in one_error(capsys)


def test_either_tables_or_a_model_is_planned(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--devices=2", "--memory=1GiB", "-o", "plan.json"]
    for sources in ([], ["tables.json", "--torchrec", f"{module}:build"]):
        assert main(["plan", *sources, *common]) == BAD_INPUT
        assert "give either TABLES, a file of a table set, or --torchrec" in one_error(capsys)


@pytest.mark.parametrize("option", ["--compute-device=cpu", "--local-devices=2"])
def test_options_for_models_are_not_for_tables(
    option: str, tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["plan", str(tables), "--devices=2", "--memory=1GiB", "-o", "plan.json", option]
    assert main(arguments) == BAD_INPUT
    assert f"{option.partition('=')[0]} is for --torchrec only" in one_error(capsys)


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of a table set, in the working folder."""
    features = [{"name": "user", "pooling_factor": 2.0}]
    table = {"name": "users", "num_embeddings": 1000, "embedding_dim": 64, "features": features}
    path = tmp_path / "tables.json"
    path.write_text(json.dumps({"tables": [table]}))
    monkeypatch.chdir(tmp_path)
    return path


def test_table_sets_are_planned_as_before(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", str(tables), "--devices=2", "--memory=1GiB", "-o", "plan.json"]
    assert main(arguments) == 0
    found = json.loads(Path("plan.json").read_text())
    assert found["schema"] != "neuroshard/torchrec-plan/1"
    assert {shard["table"] for shard in found["shards"]} == {"users"}
    assert "plan written to plan.json" in capsys.readouterr().out


# ---- without TorchRec ----

WITHOUT = """
import sys, types

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {missing!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)

sys.meta_path.insert(0, Missing())
for name in ("torch", "fbgemm_gpu"):  # which would take seconds to import
    if name != {missing!r}:
        sys.modules[name] = types.ModuleType(name)
"""


def run(code: str, **names: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code.format(**names) if names else code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )


def test_importing_the_package_or_its_commands_imports_no_torchrec() -> None:
    code = """
import sys
import neuroshard_fast, neuroshard_fast.planner, neuroshard_fast.tables
import neuroshard_fast.cli.main, neuroshard_fast.cli.plan, neuroshard_fast.cli.plan_torchrec
print([name for name in ("torch", "torchrec", "fbgemm_gpu") if name in sys.modules])
"""
    found = run(code)
    assert (found.stdout.strip(), found.stderr) == ("[]", "")


@pytest.mark.parametrize("missing", ["torch", "fbgemm_gpu", "torchrec"])
def test_where_torchrec_is_missing_importing_the_adapter_says_what_to_install(missing: str) -> None:
    code = (
        WITHOUT
        + """
import neuroshard_fast
try:
    import neuroshard_fast.torchrec
except neuroshard_fast.MissingDependencyError as error:
    print(error)
"""
    )
    printed = run(code, missing=missing).stdout
    assert f"here {missing} is missing: install" in printed
    assert "pip install --no-deps torchrec==1.8.0" in printed
    assert "fbgemm-gpu-cpu" in printed


def test_where_torchrec_is_missing_everything_else_works(tables: Path) -> None:
    code = (
        WITHOUT
        + """
from neuroshard_fast.cli.main import main
common = ["--devices=2", "--memory=1GiB"]
assert main(["plan", {tables!r}, *common, "-o", "plan.json"]) == 0
sys.exit(main(["plan", "--torchrec", "models:build", *common]))
"""
    )
    found = run(code, missing="torchrec", tables=str(tables))
    assert found.returncode == MISSING, found.stderr
    assert "plan written to plan.json" in found.stdout
    assert found.stderr.startswith("error: planning for TorchRec needs TorchRec 1.8")
    assert "Traceback" not in found.stderr
