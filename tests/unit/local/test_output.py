"""The log files of a run."""

import os
import subprocess
import sys
from pathlib import Path

WRITES = """
import sys
from pathlib import Path
from understudy_local.output import LocalOutput, Plain

output = LocalOutput(Plain(), verbose=False)
_, launcher = output.of_pod("node-0", Path(sys.argv[1]))
launcher("loss 0.5 \\N{CHECK MARK}", error=False)
output.close()
"""


def test_a_log_is_utf_8_in_every_locale(tmp_path: Path) -> None:
    # given a locale without the characters that a worker prints
    log = tmp_path / "node-0.log"
    locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": "utf-8"}
    path = ":".join(filter(None, sys.path))
    # when the run logs its line
    subprocess.run(
        [sys.executable, "-c", WRITES, str(log)],
        env={**os.environ, **locale, "PYTHONPATH": path},
        check=True,
        timeout=30,
    )
    # then the log has the line as it is, as `understudy local logs` reads it
    assert log.read_text(encoding="utf-8") == "loss 0.5 \N{CHECK MARK}\n"
