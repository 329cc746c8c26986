"""Which processes of a jax training write to its compilation cache, and how."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.zygote.conftest import Make
from tests.unit.zygote.forking import Forking

#: As jax has them.
CONFIG = """
class State:
    def __init__(self, value):
        self.value = value
compilation_cache_dir = State("cache")
"""
DISTRIBUTED = """
import os
from types import SimpleNamespace
global_state = SimpleNamespace(process_id=int(os.environ["RANK"]))
"""
COMPILER = """
from jax._src import config, distributed, lru_cache
def _cache_write(key, value, *, size=-1):
    if distributed.global_state.process_id != 0:
        return
    lru_cache.LRUCache(config.compilation_cache_dir.value, max_size=size).put(key, value)
"""
LRU_CACHE = """
import pathlib
class LRUCache:
    def __init__(self, path, *, max_size):
        self.path, self.eviction_enabled = pathlib.Path(path), max_size != -1
    def put(self, key, value):
        path = self.path / f"{key}-cache"
        if not path.exists():
            print("writes to", self.path)
            if self.path.exists():  # not in a bucket
                path.write_bytes(value)
"""
SCRIPT = """
from jax._src import compiler, config, distributed
compiler._cache_write("key", b"compiled")
print("process", distributed.global_state.process_id)
"""


@pytest.fixture(params=["jax._src.compiler", "json"])
def forks(folder: Path, jax: Path, forking: Make, request: pytest.FixtureRequest) -> Forking:
    """A zygote that has imported jax, or one whose script imports it."""
    return forking("train.py", preload=[request.param], env={"PYTHONPATH": str(folder), "RANK": "1"})


@pytest.fixture
def jax(folder: Path) -> Path:
    """The folder of its modules."""
    modules = folder / "jax" / "_src"
    modules.mkdir(parents=True)
    for package in (modules.parent, modules):
        (package / "__init__.py").touch()
    sources = {"config": CONFIG, "distributed": DISTRIBUTED, "compiler": COMPILER, "lru_cache": LRU_CACHE}
    for name, source in sources.items():
        (modules / f"{name}.py").write_text(source)
    (folder / "train.py").write_text(SCRIPT)
    (folder / "cache").mkdir()
    return modules


def entries(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "cache").iterdir()}


def test_a_process_that_is_not_the_first_writes_whole_entries_to_a_local_folder(folder: Path, forks: Forking) -> None:
    run = forks.run()
    assert (run.code, run.err) == (0, "")
    assert run.out.startswith("writes to cache/.understudy-")
    assert run.out.endswith("\nprocess 1\n")
    assert entries(folder) == {"key-cache": b"compiled"}


def test_an_incomplete_entry_of_a_worker_that_was_killed_is_replaced(folder: Path, forks: Forking) -> None:
    (folder / "cache" / "key-cache").write_bytes(b"comp")
    assert forks.run().code == 0
    assert entries(folder) == {"key-cache": b"compiled"}


@pytest.mark.parametrize("shared", ['"/proc"', '"gs://bucket"', "None"])
def test_if_the_folder_is_not_local_or_there_is_none_jax_decides_that_only_process_0_writes(
    folder: Path, forks: Forking, shared: str
) -> None:
    (folder / "train.py").write_text(
        f"from jax._src import config\nconfig.compilation_cache_dir.value = {shared}{SCRIPT}"
    )
    run = forks.run()
    assert (run.code, run.out, run.err) == (0, "process 1\n", "")


def test_a_folder_of_limited_size_is_written_by_jax_because_it_removes_other_entries(
    folder: Path, forks: Forking
) -> None:
    (folder / "train.py").write_text(SCRIPT.replace('b"compiled"', 'b"compiled", size=9'))
    assert forks.run().out == "writes to cache\nprocess 1\n"


def test_process_0_writes_to_a_bucket_as_jax_does(folder: Path, forks: Forking) -> None:
    (folder / "train.py").write_text(
        "from jax._src import config, distributed\nconfig.compilation_cache_dir.value = 'gs://bucket'\n"
        f"distributed.global_state.process_id = 0{SCRIPT}"
    )
    assert forks.run().out == "writes to gs:/bucket\nprocess 0\n"


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("compiler", "_cache_write(", "_write_to_cache("),
        ("compiler", "process_id != 0", "process_id != 0 or distributed.global_state.is_idle"),
        ("config", "compilation_cache_dir", "cache_folder"),
        ("lru_cache", "LRUCache", "Files"),
    ],
)
def test_another_version_of_jax_stays_as_it_is(
    folder: Path, jax: Path, forking: Make, module: str, old: str, new: str
) -> None:
    if module != "compiler":  # the name is also used there
        source = (jax / "compiler.py").read_text()
        (jax / "compiler.py").write_text(source.replace(old, new))
    (jax / f"{module}.py").write_text((jax / f"{module}.py").read_text().replace(old, new))
    (folder / "train.py").write_text(SCRIPT.replace(old, new) if "(" in old else SCRIPT)
    run = forking("train.py", preload=["json"], env={"PYTHONPATH": str(folder), "RANK": "1"}).run()
    assert (run.code, run.out, run.err) == (0, "process 1\n", "")
    assert entries(folder) == {}
