"""The entry script `launch`: which Python runs the launcher, and that no user code affects it."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pythons import VARIABLE, find_python
from tests.unit.launcher.fake_sidecar import TRAINER_PYTHON, Launched, round_, wait_for
from understudy_protocol import pod
from understudy_protocol.launcher import ExitLauncher, Stepped, WorkersFinished

Launch = Callable[..., Launched]
AS_WRITTEN = {pod.ENV_LOG_PREFIX: "false"}
STUB_TOOLS = ("sh", "env", "bash")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A PATH folder with only a shell: an image without Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in STUB_TOOLS:
        (folder / tool).symlink_to(shutil.which(tool) or pytest.fail(f"no {tool} here"))
    return folder


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def python_called(path: Path, name: str) -> Path:
    """A Python of that name that prints a line when it runs the launcher."""
    says = f'case "$*" in *launcher.pyz*) echo "ran {path / name}" ;; esac'
    return script(path / name, f'#!/bin/sh\n{says}\nexec {TRAINER_PYTHON} "$@"\n')


def old_python(path: Path, name: str) -> Path:
    """A Python that reports version 3.8, in reply to the entry script's `-I -S -c CODE`."""
    claims = 'exec "$python" -I -S -c "import sys; sys.version_info = (3, 8, 18); $4"'
    return script(path / name, f"#!/bin/sh\npython={TRAINER_PYTHON}\n{claims}\n")


def ran_by(launched: Launched) -> str:
    return wait_for(lambda: launched.out.splitlines(), f"a Python's line; instead:\n{launched.err}")[0]


@pytest.mark.parametrize(
    "command",
    [
        ["{here}/python3.11", "train.py"],
        ["{here}/python", "-u", "-m", "train"],
        ["env", "{here}/python3", "train.py"],
        ["/usr/bin/env", "-u", "X=1", "A=b", "{here}/python3", "train.py"],
        ["{here}/script"],
        ["{here}/env-script", "--lr", "1"],
        ["script-on-path"],
    ],
    ids=" ".join,
)
def test_the_python_that_the_command_names_comes_first(
    launch: Launch, path: Path, tmp_path: Path, command: list[str]
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    python_called(path, "python3")
    named = [str(python_called(here, name)) for name in ("python3.11", "python", "python3")]
    script(here / "script", f"#!{here}/python3 -u\nprint()\n")
    script(here / "env-script", f"#! /usr/bin/env -S {here}/python -u\nprint()\n")
    script(path / "script-on-path", f"#!{here}/python3.11\n")
    launched = launch(*[word.format(here=here) for word in command], PATH=str(path))
    assert ran_by(launched).removeprefix("ran ") in named


@pytest.mark.parametrize(
    "command",
    [["bash", "-c", "python train.py"], ["{here}/train.sh"], ["nowhere"], ["{here}"], ["/bin/true"]],
    ids=" ".join,
)
def test_any_other_command_gets_the_python_on_path(
    launch: Launch, path: Path, tmp_path: Path, command: list[str]
) -> None:
    script(tmp_path / "train.sh", "#!/bin/bash\n")
    expected = python_called(path, "python3")
    launched = launch(*[word.format(here=tmp_path) for word in command], PATH=str(path))
    assert ran_by(launched) == f"ran {expected}"


def test_python_without_a_3_is_found_too(launch: Launch, path: Path) -> None:
    expected = python_called(path, "python")
    assert ran_by(launch("bash", "-c", "true", PATH=str(path))) == f"ran {expected}"


def test_an_old_python_is_skipped(launch: Launch, path: Path) -> None:
    old_python(path, "python3")
    expected = python_called(path, "python")
    assert ran_by(launch("python3", "train.py", PATH=str(path))) == f"ran {expected}"


def test_an_image_without_a_new_enough_python_is_rejected_with_the_fix(launch: Launch, path: Path) -> None:
    old_python(path, "python3")
    launched = launch("python3", "train.py", PATH=str(path))
    assert launched.wait() == 127
    assert launched.err == (
        'understudy launch: the command "python3" needs Python >= 3.9 in this container\'s image to run the launcher; '
        "tried: python3 (older than 3.9, or broken) python (not found). "
        "Add one to the image's PATH, or set `launcher.python` to its path.\n"
    )


def test_a_missing_command_is_rejected(launch: Launch) -> None:
    launched = launch()
    assert launched.wait() == 64
    assert "expected a command" in launched.err


def test_arguments_arrive_as_they_are(launch: Launch) -> None:
    launched = launch(
        "bash", "-c", 'printf "<%s>" "$@"', "name", "", "two words", "$HOME *", "--", "-x\n", **AS_WRITTEN
    )
    launched.join()
    launched.sidecar.send(round_(0))
    launched.sidecar.expect(WorkersFinished)
    assert launched.out == "<><two words><$HOME *><--><-x\n>"


def test_the_users_modules_reach_the_workers_and_not_the_launcher(launch: Launch, tmp_path: Path) -> None:
    """Modules with standard library names, on PYTHONPATH and in the working directory, and a broken site hook."""
    for name in ("selectors", "socket", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("print('shadowed', __name__)\n")
    launched = launch(
        TRAINER_PYTHON,
        "-c",
        "import selectors, sys; print(sys.path[1:2])",
        cwd=tmp_path,
        PYTHONPATH=str(tmp_path),
        **AS_WRITTEN,
    )
    launched.join()
    launched.sidecar.send(round_(0))
    launched.sidecar.expect(WorkersFinished)
    assert launched.out.splitlines()[-1] == str([str(tmp_path)])
    assert launched.out.count("shadowed selectors") == 1, "by the worker, not by the launcher"


def test_it_runs_where_nothing_can_be_written(launch: Launch) -> None:
    launched = launch("sh", "-c", "pwd", cwd=Path("/proc"), TMPDIR="/proc", HOME="/proc", **AS_WRITTEN)
    launched.join()
    launched.sidecar.send(round_(0))
    launched.sidecar.expect(WorkersFinished)
    assert launched.out == "/proc\n"


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.11", "3.12", "3.13"])
def test_it_runs_on_the_image_s_python(launch: Launch, version: str) -> None:
    python = find_python(version)
    if python is None:
        assert VARIABLE not in os.environ, "`make pythons` has installed each version"
        pytest.skip(f"no Python {version} here")
    launched = launch(python, "-c", "import understudy_torch; understudy_torch.step(1); print('done')")
    launched.join()
    launched.sidecar.send(round_(0))
    launched.sidecar.expect(Stepped)
    launched.sidecar.expect(WorkersFinished)
    launched.sidecar.send(ExitLauncher(0, "Succeeded"))
    assert launched.wait() == 0
    assert launched.out == "[rank 0] done\n"
    assert f" python={version}." in launched.err
