"""What a fork changes in a module of another version must not reach the script."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.zygote.conftest import Make


@pytest.mark.parametrize("preload", ["torch.utils.file_baton", "json"])
def test_a_module_that_lacks_what_is_changed_is_imported_as_it_is(folder: Path, forking: Make, preload: str) -> None:
    (folder / "torch" / "utils").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("class G:\n    def seed(self): pass\ndefault_generator = G()")
    (folder / "torch" / "utils" / "__init__.py").touch()
    (folder / "torch" / "utils" / "file_baton.py").write_text("version = 9\n")
    (folder / "train.py").write_text("from torch.utils.file_baton import version\nprint(version)\n")
    run = forking("train.py", preload=[preload], env={"PYTHONPATH": str(folder)}).run()
    assert (run.code, run.out, run.err) == (0, "9\n", "")


def test_an_importer_that_python_looks_for_in_an_older_way_does_not_break_an_import(
    folder: Path, forking: Make
) -> None:
    (folder / "torch" / "utils").mkdir(parents=True)
    for package in ("torch", "torch/utils"):
        (folder / package / "__init__.py").touch()
    (folder / "torch" / "utils" / "file_baton.py").write_text("class FileBaton:\n    try_acquire = wait = None\n")
    (folder / "train.py").write_text(
        "import sys, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "class Old:\n    def find_module(self, name, path=None): return None\n"
        "sys.meta_path.append(Old())\n"
        "sys.meta_path.insert(1, Old())\n"
        "from torch.utils import file_baton\n"
        "print(file_baton.FileBaton.wait is not None)\n"
    )
    run = forking("train.py", preload=["json"], env={"PYTHONPATH": str(folder)}).run()
    assert (run.code, run.out, run.err) == (0, "True\n", "")
