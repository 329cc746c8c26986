"""Scripts that set variables which an import has already read in the zygote: their workers are fresh processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.unit.zygote.conftest import Make
from tests.unit.zygote.forking import Forking, fresh
from understudy_zygote.early_variables import fresh_start_reason
from understudy_zygote.script import CODE, FILE, MODULE, Program

#: Replaces torch and numpy: it reads one variable during its import.
TORCH = """
import os
threads = os.environ.get("OMP_NUM_THREADS", "unset")
class G:
    def seed(self): pass
default_generator = G()
"""
SETS = "import os\nos.environ['OMP_NUM_THREADS'] = '7'\nimport torch\nprint(torch.threads, os.environ['RANK'])"


@pytest.fixture(autouse=True)
def a_zygote_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only of torch: other tests in this process may have imported more modules, and its terminal may set more
    variables.
    """
    for module in ("numpy", "transformers", "huggingface_hub", "datasets", "jax", "tensorflow", "numba", "numexpr"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "torch", sys)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCH_LOGS"):
        monkeypatch.delenv(name, raising=False)


def why(*lines: str) -> str:
    return fresh_start_reason(Program(CODE, "\n".join(lines), ()))


# Forks ----------------------------------------------------------------------------------------------------------------


def preloaded(forking: Make, folder: Path, *words: str) -> Forking:
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(TORCH)
    return forking(*words, preload=["torch"], env={"PYTHONPATH": str(folder)})


@pytest.mark.parametrize("words", [("train.py", "--lr", "1"), ("-m", "package"), ("-m", "package.train"), ("-c", SETS)])
def test_a_worker_of_such_a_script_sees_the_same_as_a_fresh_process(
    folder: Path, forking: Make, words: tuple[str, ...]
) -> None:
    (folder / "package").mkdir()
    for name in ("train", "package/__main__", "package/train"):
        (folder / f"{name}.py").write_text(SETS)
    (folder / "package" / "__init__.py").write_text("print('package')")
    seen = preloaded(forking, folder, *words).run(RANK="3")
    assert (seen.code, seen.out) == (0, fresh(sys.executable, *words, env={"RANK": "3", "PYTHONPATH": str(folder)}).out)
    assert seen.err == (
        "understudy: line 2 sets OMP_NUM_THREADS before the script imports torch, which reads it during its import. "
        "The fork server has already imported torch, so this worker starts as a new process. "
        "Set OMP_NUM_THREADS in the container's env to fork workers\n"
    )


def test_a_worker_of_another_script_is_forked_without_a_message(folder: Path, forking: Make) -> None:
    (folder / "train.py").write_text("import torch, os\nos.environ['OMP_NUM_THREADS'] = '7'\nprint(torch.threads)")
    seen = preloaded(forking, folder, "train.py").run()
    assert (seen.code, seen.out, seen.err) == (0, "unset\n", "")


# Which lines count ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "os.environ['OMP_NUM_THREADS'] = '4'",
        "environ['OMP_NUM_THREADS'] = str(n)",
        "if n: os.environ['MKL_NUM_THREADS'] = '4'",
        "def f(): os.environ['TORCH_LOGS'] = '+dynamo'",
        "os.environ.setdefault('OMP_NUM_THREADS', '4')",
        "os.environ.update(OMP_NUM_THREADS='4')",
        "os.environ.update({'A': 'b', 'OMP_NUM_THREADS': '4'})",
        "os.environ |= {'OMP_NUM_THREADS': '4'}",
        "os.putenv('OMP_NUM_THREADS', '4')",
        "for name in ('A', 'OMP_NUM_THREADS'): os.environ[name] = '4'",
        "os.environ['PYTORCH_JIT'] = '0'",
    ],
)
def test_a_variable_that_torch_reads_at_its_import(line: str) -> None:
    assert why("import os", line, "import torch").startswith("line 2 sets ")
    assert why("import os", line, "from torch.nn import functional").startswith("line 2 sets ")
    assert why("import os", "import torch", line) == ""


@pytest.mark.parametrize(
    "line",
    [
        "os.environ['MASTER_PORT'] = '4'",
        "os.environ['CUDA_VISIBLE_DEVICES'] = '4'",
        "os.environ['NCCL_DEBUG'] = 'INFO'",
        "os.environ['TORCH_NCCL_BLOCKING_WAIT'] = '1'",
        "os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'",
        "os.environ['HF_HOME'] = '/data'",  # none of its modules was imported
        "n = os.environ['OMP_NUM_THREADS']",
        "n = os.environ.get('OMP_NUM_THREADS', '4')",
        "for name in names: os.environ[name] = '4'",
        "settings['OMP_NUM_THREADS'] = '4'",
        "# os.environ['OMP_NUM_THREADS'] = '4'",
    ],
)
def test_a_line_that_changes_nothing_for_imported_modules(line: str) -> None:
    assert why("import os", line, "import torch") == ""


@pytest.mark.parametrize(
    ("line", "value", "counts"),
    [
        ("os.environ['OMP_NUM_THREADS'] = '1'", "1", False),
        ("os.environ['OMP_NUM_THREADS'] = '1'", "2", True),
        ("os.environ['OMP_NUM_THREADS'] = str(n)", "1", True),
        ("os.environ.setdefault('OMP_NUM_THREADS', '4')", "1", False),
    ],
)
def test_a_value_that_is_already_set(monkeypatch: pytest.MonkeyPatch, line: str, value: str, counts: bool) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert bool(why("import os", line, "import torch")) is counts


SETS_THREADS = "os.environ['OMP_NUM_THREADS'] = '4'"


def test_a_script_that_leaves_the_import_to_a_framework() -> None:
    assert why("import os", SETS_THREADS, "import lightning")
    assert not why("import os", "import lightning", SETS_THREADS, "import torch")
    assert why("import os", SETS_THREADS, "import my_models")
    assert not why("import os", "import my_models", SETS_THREADS, "def f():", " import json")


def test_a_module_of_the_users_preload_that_reads_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", sys)
    script = ("import os", "os.environ['HF_HOME'] = '/data'", "import transformers")
    assert "sets HF_HOME before the script imports transformers" in why(*script)


@pytest.mark.parametrize(
    "source", ["os.environ['OMP_NUM_THREADS'] =", "env\0", "environ" + "(" * 5000, "\ud800environ"]
)
def test_a_script_that_cannot_be_parsed_is_left_to_python(source: str) -> None:
    assert fresh_start_reason(Program(CODE, source, ())) == ""


def test_a_script_that_cannot_be_found_is_left_to_python(tmp_path: Path) -> None:
    assert fresh_start_reason(Program(FILE, str(tmp_path / "gone.py"), ())) == ""
    assert fresh_start_reason(Program(MODULE, "understudy_nowhere.train", ())) == ""
