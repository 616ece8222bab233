"""What is built to be installed elsewhere: the wheel and the source distribution."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from neuroshard_fast import __version__

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "python" / "neuroshard_fast"

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--no-build-isolation", "--no-deps", "--no-index"]
    # A build folder of its own leaves the editable installation alone.
    options += ["--config-settings", f"build-dir={folder / 'build'}", "--wheel-dir", str(folder)]
    command = [sys.executable, "-m", "pip", "wheel", *options, str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    info = f"neuroshard_fast-{__version__}.dist-info"
    scripts = f"neuroshard_fast-{__version__}.data/scripts"
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {name for name in names if name.startswith("neuroshard_fast/")}
    assert {name.split("/")[0] for name in names - package} == {info, scripts.split("/")[0]}
    assert f"{scripts}/neuroshard-bench" in names
    assert f"{info}/licenses/LICENSE" in names

    sources = {
        f"neuroshard_fast/{path.relative_to(PACKAGE)}"
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    core = f"neuroshard_fast/_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    assert package == sources | {core}
    assert {"neuroshard_fast/py.typed", "neuroshard_fast/_core.pyi"} <= package


def test_the_wheel_works_where_it_is_unpacked(wheel: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(wheel, tmp_path, "zip")
    program = """
import neuroshard_fast
from neuroshard_fast import _core
from neuroshard_fast.cli.main import main
print(neuroshard_fast.__file__, _core.__file__, sep="\\n", flush=True)
main(["schema", "plan"])
"""
    # -S leaves out the editable installation, and with it the dependencies, which come back by path.
    path = f"{tmp_path}:{sysconfig.get_path('purelib')}"
    result = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    package, core, *schema = result.stdout.splitlines()
    assert Path(package).parent == Path(core).parent == tmp_path / "neuroshard_fast"
    assert schema[0] == "{"


def test_the_source_distribution_holds_what_a_build_needs_and_no_tests(tmp_path: Path) -> None:
    program = "import sys, scikit_build_core.build as b; b.build_sdist(sys.argv[1])"
    command = [sys.executable, "-c", program, str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert path.name == f"neuroshard_fast-{__version__}.tar.gz"
    needed = {"CMakeLists.txt", "pyproject.toml", "LICENSE", "README.md"}
    needed |= {str(file.relative_to(ROOT)) for file in ROOT.glob("csrc/**/*") if file.is_file()}
    needed |= {
        str(file.relative_to(ROOT)) for file in PACKAGE.rglob("*.py*") if file.suffix != ".pyc"
    }
    assert needed <= names
    assert not {name for name in names if name.startswith(("tests", "data", ".ci"))}
