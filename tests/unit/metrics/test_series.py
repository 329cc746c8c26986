"""The alerts, over series: Prometheus' own promtool evaluates them. `make tools` installs it."""

import subprocess
from pathlib import Path

import pytest

from scripts.metrics_docs import ALERTS
from tests.cluster.paths import Paths
from tests.cluster.unit_tools import PROMTOOL


@pytest.mark.parametrize("words", [("check", "rules", *map(str, sorted(ALERTS.glob("*.yaml")))), ("test", "rules")])
def test_promtool_accepts_the_alerts(words: tuple[str, ...]):
    files = [] if words[0] == "check" else [str(Path(__file__).with_name("alerts.series.yaml"))]
    program = PROMTOOL.get(Paths.from_environment())
    done = subprocess.run([program, *words, *files], check=False, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
