"""The entry script `with-understudy`: the script runs unchanged, and can import understudy_torch."""

import subprocess
from pathlib import Path

from understudy_protocol import pod


def run(folder: Path, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    stub = ["/bin/sh", str(folder / pod.PLAIN_SCRIPT)]
    whole = {"PATH": "/usr/bin:/bin", **env}
    return subprocess.run([*stub, *command], env=whole, capture_output=True, text=True, check=False)


def test_the_script_imports_understudy_torch_and_keeps_its_own_path_first(packaged: Path) -> None:
    script = "import sys, understudy_torch; print(understudy_torch.exit_on_fault.__name__, sys.path[1])"
    done = run(packaged, "python3", "-c", script, PYTHONPATH="/mine")
    assert done.stdout.split() == ["exit_on_fault", "/mine"], done.stderr


def test_the_command_replaces_the_shell_with_its_arguments_and_its_code(packaged: Path) -> None:
    done = run(packaged, "bash", "-c", 'printf "<%s>" "$@"; exit 7', "name", "", "two words", "$HOME *")
    assert (done.stdout, done.returncode) == ("<><two words><$HOME *>", 7)


def test_without_a_command_the_script_reports_the_missing_argument(packaged: Path) -> None:
    done = run(packaged)
    assert (done.returncode, "expected a command" in done.stderr) == (64, True)
