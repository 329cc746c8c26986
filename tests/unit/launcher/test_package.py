"""The files that the sidecar's image copies into the trainer: complete, reproducible, and in Python 3.9's syntax."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from understudy_launcher import package

SIDECAR = Path(package.__file__).resolve().parents[1]
IN_ZIP = ("understudy_launcher", "understudy_protocol")
FOR_WORKERS = ("understudy_torch", "understudy_jax", "understudy_zygote")
#: Part of it needs aiohttp: tests/unit/rollout/test_python.py.
ROLLOUT = SIDECAR / "understudy_rollout"
OURS = (*IN_ZIP, *FOR_WORKERS, "understudy_torchrun")
SHIPPED = [
    *package.launcher_sources(),
    *sorted(x for name in OURS if name not in IN_ZIP for x in (SIDECAR / name).rglob("*.py")),
]
#: Only torchrun's rendezvous, which torch itself loads.
NEEDS_TORCH = {SIDECAR / "understudy_torchrun" / name for name in ("handler.py", "hand_over.py", "stores.py")}
NEEDS_TORCH |= {SIDECAR / "understudy_torch" / name for name in ("dcp.py", "gpu_copies.py", "snapshot.py")}
NEEDS_JAX = {SIDECAR / "understudy_jax" / "snapshot.py"}


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_command_writes_the_launcher_the_entry_scripts_and_the_workers_packages(tmp_path: Path) -> None:
    destination = tmp_path / "new" / "folder"
    command = [sys.executable, "-m", "understudy_launcher.package", str(destination)]
    subprocess.run(command, check=True, cwd=SIDECAR)
    torchruns = {f"python/{x.relative_to(SIDECAR)}" for x in (SIDECAR / "understudy_torchrun").rglob("*.py")}
    rollouts = {f"python/{x.relative_to(SIDECAR)}" for x in ROLLOUT.rglob("*.py")}
    assert set(files(destination)) - {f"python/{x.relative_to(SIDECAR)}" for x in package.launcher_sources()} == {
        *torchruns,
        *rollouts,
        "python/understudy_launcher/py.typed",
        "python/understudy_torchrun/py.typed",
        "python/understudy_torchrun-1.dist-info/METADATA",
        "python/understudy_torchrun-1.dist-info/entry_points.txt",
        "launcher.pyz",
        "launch",
        "launch-torchrun",
        "with-understudy",
        "python/understudy_jax/__init__.py",
        "python/understudy_jax/py.typed",
        "python/understudy_jax/snapshot.py",
        "python/understudy_torch/__init__.py",
        "python/understudy_torch/collectives.py",
        "python/understudy_torch/dcp.py",
        "python/understudy_torch/gpu_copies.py",
        "python/understudy_torch/last_collectives.py",
        "python/understudy_torch/progress.py",
        "python/understudy_torch/py.typed",
        "python/understudy_torch/sigterm.py",
        "python/understudy_torch/snapshot.py",
        "python/understudy_torch/stacks.py",
        "python/understudy_zygote/__init__.py",
        "python/understudy_zygote/__main__.py",
        "python/understudy_zygote/build_locks.py",
        "python/understudy_zygote/jax_cluster.py",
        "python/understudy_zygote/jax_cache.py",
        "python/understudy_zygote/child.py",
        "python/understudy_zygote/early_variables.py",
        "python/understudy_zygote/fitness.py",
        "python/understudy_zygote/fresh/__init__.py",
        "python/understudy_zygote/fresh/sitecustomize.py",
        "python/understudy_zygote/import_record.py",
        "python/understudy_zygote/learning.py",
        "python/understudy_zygote/on_import.py",
        "python/understudy_zygote/optimizer_steps.py",
        "python/understudy_zygote/script.py",
        "python/understudy_zygote/serve.py",
        "python/understudy_zygote/store_fork.py",
        "python/understudy_zygote/uncaught.py",
    }
    for stub in ("launch", "launch-torchrun", "with-understudy"):
        assert (destination / stub).stat().st_mode & 0o777 == 0o755
    assert (destination / "launcher.pyz").stat().st_mode & 0o777 == 0o644


def test_a_python_that_is_too_old_names_the_field_that_chooses_another_one(packaged: Path) -> None:
    run = "import runpy, sys; sys.version_info = (3, 8, 20); runpy.run_path(sys.argv[1], run_name='__main__')"
    command = [sys.executable, "-c", run, str(packaged / "launcher.pyz")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 127
    assert done.stderr == (
        f"understudy launcher: the launcher needs Python >= 3.9, and {sys.executable} is Python 3.8: set "
        "`launcher.python` to the path of a newer one.\n"
    )


def test_the_same_sources_give_the_same_bytes(tmp_path: Path, packaged: Path) -> None:
    package.write_package(tmp_path)
    package.write_package(tmp_path)
    assert files(tmp_path) == files(packaged)


def test_the_zip_needs_no_zlib_and_contains_only_sources(packaged: Path) -> None:
    with zipfile.ZipFile(packaged / "launcher.pyz") as archive:
        entries = archive.infolist()
    assert {entry.compress_type for entry in entries} == {zipfile.ZIP_STORED}
    assert {Path(entry.filename).suffix for entry in entries} == {".py"}
    assert {entry.filename.partition("/")[0] for entry in entries} == {"__main__.py", *IN_ZIP}


@pytest.mark.parametrize("module", ["compiled.py", "handshake.py", "noise.py", "sessions.py"])
def test_modules_that_need_a_library_are_not_shipped(packaged: Path, module: str) -> None:
    with zipfile.ZipFile(packaged / "launcher.pyz") as archive:
        assert f"understudy_protocol/{module}" not in archive.namelist()
    assert not (packaged / "python" / "understudy_protocol" / module).exists()


def test_a_wrong_command_line_prints_the_usage() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "understudy_launcher.package"], check=False, cwd=SIDECAR, capture_output=True, text=True
    )
    assert done.returncode == 64
    assert "understudy_launcher.package FOLDER" in done.stderr


@pytest.mark.parametrize("source", SHIPPED, ids=lambda source: source.relative_to(SIDECAR).as_posix())
def test_the_syntax_is_python_3_9s_and_the_imports_are_its_standard_librarys(source: Path) -> None:
    tree = ast.parse(source.read_text(), feature_version=(3, 9))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    roots = {name.partition(".")[0] for name in imported} - set(OURS)
    roots -= {"torch"} if source in NEEDS_TORCH else set()
    roots -= {"jax", "ml_dtypes", "numpy"} if source in NEEDS_JAX else set()
    assert roots <= set(sys.stdlib_module_names)
    assert not imported & {"tomllib", "asyncio"}
    unions = [ast.unparse(x) for x in _annotations(tree) if any(isinstance(y, ast.BitOr) for y in ast.walk(x))]
    assert not unions, "3.9 evaluates these, and cannot"


def _annotations(tree: ast.AST) -> list[ast.AST]:
    found = [node.returns for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    found += [node.annotation for node in ast.walk(tree) if isinstance(node, ast.arg | ast.AnnAssign)]
    return [node for node in found if node is not None]


def test_torch_finds_the_rendezvous_backend_without_an_installation(packaged: Path) -> None:
    (found,) = metadata.distributions(name="understudy-torchrun", path=[str(packaged / "python")])
    (entry,) = found.entry_points
    assert (entry.group, entry.name, entry.value) == ("torchrun.handlers", "understudy", "understudy_torchrun:handlers")
    load = "import sys, understudy_torchrun as u; u.handlers(); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", load],
        env={"PYTHONPATH": str(packaged / "python")},
        check=True,
        capture_output=True,
    )
    assert b"understudy_torchrun" in done.stdout
    assert b"understudy_launcher" not in done.stdout, "workers load it too, with torch.distributed.elastic"


def test_torch_finds_the_backend_where_the_wheel_is_installed() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"] == {"torchrun.handlers": {"understudy": "understudy_torchrun:handlers"}}


ENTRY_POINT_TWICE = """
import sys, types

class RendezvousParameters:
    def __init__(self, backend):
        self.backend = backend

api = types.SimpleNamespace(RendezvousParameters=RendezvousParameters)
sys.modules["torch.distributed.elastic.rendezvous.api"] = api
import understudy_torchrun

first, watched = understudy_torchrun.handlers(), RendezvousParameters.__init__
assert understudy_torchrun.handlers() is first  # else torch rejects the second one
assert RendezvousParameters.__init__ is watched
assert RendezvousParameters("c10d").backend == "c10d"
"""


def test_a_pod_whose_image_has_the_wheel_watches_torch_once(packaged: Path) -> None:
    env = {"PYTHONPATH": str(packaged / "python")}
    subprocess.run([sys.executable, "-S", "-c", ENTRY_POINT_TWICE], env=env, check=True)
