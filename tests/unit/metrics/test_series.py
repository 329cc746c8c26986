"""The alerts, over series: Prometheus' own promtool evaluates them. It is no part of the tools of this project, for its
build takes 2 GB; whoever has it on the PATH has these tests.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from scripts.metrics_docs import ALERTS

PROMTOOL = shutil.which("promtool")
pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not on the PATH")


@pytest.mark.parametrize("words", [("check", "rules", *map(str, sorted(ALERTS.glob("*.yaml")))), ("test", "rules")])
def test_promtool_says_so(words: tuple[str, ...]):
    files = [] if words[0] == "check" else [str(Path(__file__).with_name("alerts.series.yaml"))]
    done = subprocess.run([str(PROMTOOL), *words, *files], check=False, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
