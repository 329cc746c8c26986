"""The record of the modules that a worker imports never disturbs these imports."""

from __future__ import annotations

import sys
from pathlib import Path

import understudy_zygote
from tests.unit.zygote.forking import fresh

SIDECAR = Path(understudy_zygote.__file__).resolve().parents[1]

#: Fills its record with the first import, and then imports a module that is built in.
FULL = """
import os, sys
from understudy_zygote.import_record import record_imports
file = os.memfd_create("imports")
os.ftruncate(file, 16)
sys.meta_path[:] = [finder for finder in sys.meta_path if "Builtin" in repr(finder) or "Path" in repr(finder)]
record_imports(file)
import colorsys
__import__(next(name for name in sys.builtin_module_names if name not in sys.modules))
import sched
print("trains")
"""


def test_a_script_continues_when_the_record_is_full() -> None:
    assert fresh(sys.executable, "-c", FULL, env={"PYTHONPATH": str(SIDECAR)}).out == "trains\n"
