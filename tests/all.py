"""`make test`: all tests. The e2e ones wait for a cluster half of the time, so some others run beside them, at a lower
priority, in the time that they leave; not those of the integration, whose processes are to answer within limits.

What runs beside writes into build/beside.log, which is printed at its end. All of it runs to its end, whatever fails.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
LOG = CHECKOUT / "build" / "beside.log"
BEFORE = ("check", "integration")
BESIDE = ("simulation", "torchrun", "rollout")
NICE = 10


def main() -> int:
    if code := subprocess.run(["make", *BEFORE], cwd=CHECKOUT, check=False).returncode:
        return code
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("w") as log:
        # A group of its own, so that all of it can be ended; the session stays ours, in which priorities count.
        others = subprocess.Popen(
            ["nice", "-n", str(NICE), "make", "--keep-going", *BESIDE],
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    print(f"beside the e2e tests: {', '.join(BESIDE)}; their output: {LOG.relative_to(CHECKOUT)}", flush=True)
    try:
        e2e = subprocess.run(["make", "e2e"], cwd=CHECKOUT, check=False).returncode
        began = time.monotonic()
        beside = others.wait()
    finally:
        if others.poll() is None:
            os.killpg(others.pid, signal.SIGTERM)
            others.wait()
    print(LOG.read_text())
    print(f"waited {time.monotonic() - began:.0f} s for what ran beside")
    for what, code in {"e2e": e2e, ", ".join(BESIDE): beside}.items():
        print(f"{what}: {'passed' if code == 0 else 'FAILED'}")
    return e2e or beside


if __name__ == "__main__":
    sys.exit(main())
