"""A command that cannot start is rejected in one line before anything starts; other commands are not."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from understudy_local.preflight import refusal

Write = Callable[[str], str]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes train.py into the working directory."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> str:
        Path("train.py").write_text(text)
        return "train.py"

    return write


def refused(*command: str, shipped: str = "/nonexistent") -> str:
    return refusal([sys.executable, *command], Path(shipped), os.environ)


def test_a_missing_script_is_rejected(script: Write) -> None:
    assert refused("-u", "no-such.py", "--lr", "1") == "there is no file 'no-such.py'"


def test_a_script_that_is_no_python(script: Write) -> None:
    assert refused(script("x = 1\nif x\n    pass\n")) == "train.py, line 2: SyntaxError: expected ':'"
    assert refused(script("x = 1\nreturn x\n")) == "train.py, line 2: SyntaxError: 'return' outside function"
    assert refused("-c", "x =") == "<string>, line 1: SyntaxError: invalid syntax"


@pytest.mark.parametrize(
    "text",
    ["import no_torch", "from no_torch.nn import Linear", "import os, no_torch.nn as nn\nimport sys"],
    ids=["import", "from", "among others"],
)
def test_a_missing_module_is_rejected(script: Write, text: str) -> None:
    assert refused(script(f'"""A training."""\nfrom __future__ import annotations\n{text}\n')) == (
        f"train.py, line 3: it imports no_torch, which {sys.executable} does not have: install it there, or start the "
        "script with the Python that has it"
    )
    assert "it imports no_torch" in refused("-c", text)


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    import no_torch\nexcept ImportError:\n    pass",
        "import sys\nsys.path.insert(0, 'vendored')\nimport no_torch",
        "import own\nimport no_torch",
        "def later():\n    import no_torch",
        "from . import no_torch",
        "import os.path, json, pytest, understudy_shipped",
        "raise SystemExit('no data')",
    ],
)
def test_a_module_that_may_exist_when_the_script_runs_is_not_checked(script: Write, tmp_path: Path, text: str) -> None:
    (tmp_path / "own.py").write_text("import sys\nsys.path.insert(0, 'vendored')")
    (tmp_path / "shipped").mkdir()
    (tmp_path / "shipped/understudy_shipped.py").touch()
    assert refused(script(text), shipped=str(tmp_path / "shipped")) == ""


def test_a_module_to_run(script: Write) -> None:
    assert refused("-m", "no_such.module") == f"{sys.executable} has no module 'no_such'"
    assert refused("-m", "json.tool") == ""


def test_a_command_that_is_no_python_is_not_checked(script: Write) -> None:
    assert refusal(["/bin/sh", "-c", "python no-such.py"], Path("/nonexistent"), os.environ) == ""
    assert refusal(["no-such-program", "x.py"], Path("/nonexistent"), os.environ) == ""
    assert refused("-i", "x.py") == ""


def test_a_program_without_source_is_not_checked(script: Write, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.writestr("__main__.py", "import no_torch")
    (tmp_path / "train.pyc").write_bytes(b"\0\1")
    assert [refused(name) for name in ("app.zip", "train.pyc", str(tmp_path))] == ["", "", ""]


def test_an_interpreter_that_does_not_answer_rejects_nothing(script: Write, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho broken; exit 3\n")
    python.chmod(0o755)
    assert refusal([str(python), script("import no_torch")], Path("/nonexistent"), os.environ) == ""
