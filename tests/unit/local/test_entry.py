"""The installed command `understudy`, in a Python without the packages of the extra `local`."""

import subprocess
import sys

import pytest

COMMAND = "import sys; sys.modules[{package!r}] = None; from understudy_local.entry import main; sys.exit(main())"


@pytest.mark.parametrize("package", ["uvloop", "rich", "msgspec"])
def test_a_missing_package_is_named_in_one_line_with_the_fix(package: str) -> None:
    # given an installation without one of the packages
    # when a user runs the command
    ended = subprocess.run(
        [sys.executable, "-c", COMMAND.format(package=package)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    # then one line names the package and the extra that contains it
    assert ended.returncode == 2
    assert ended.stderr == (
        f"understudy: the package {package} is missing: install the extra `local` of understudy-training, "
        "with pip install 'PATH[local]', where PATH is the wheel or the checkout\n"
    )
