"""A fork that serves the store of a round, while the launcher ends."""

from __future__ import annotations

import sys
from pathlib import Path

import understudy_zygote
from tests.unit.zygote.forking import fresh

CALL = """import socket
from understudy_zygote.store_fork import serve
control, of_launcher = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
of_launcher.close()
serve(control)
"""


def test_a_launcher_that_has_ended_gets_no_answer_and_the_log_no_traceback() -> None:
    """At the end of each job that a SIGTERM ends, if the next round was being prepared."""
    done = fresh(sys.executable, "-c", CALL, env={"PYTHONPATH": str(Path(understudy_zygote.__file__).parent.parent)})
    assert (done.code, done.err) == (0, "")
