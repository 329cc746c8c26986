"""Ctrl-C while the API server does not respond, and at a question."""

import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.unit.cli import samples
from tests.unit.cli.server import Answer, scripted
from tests.unit.cli.test_entry import JOBS, kubeconfig

#: Less than the time after which the program itself gives up on an answer.
LIMIT_S = 15
PODS = "/api/v1/namespaces/team-a/pods"
#: A shell's background jobs ignore SIGINT, and so do the tests among them.
START = """
import signal, sys
from understudy_cli.entry import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""


@pytest.mark.parametrize("words", [["logs", "llm"], ["stacks", "llm"]])
def test_ctrl_c_ends_a_command_that_waits_for_logs(tmp_path: Path, words: list[str]) -> None:
    asked, ended = threading.Event(), threading.Event()

    def silence() -> str:
        asked.set()
        ended.wait(60)
        return ""

    # given a kubelet that accepts the request for a log, and does not respond
    found = samples.pods()
    answers = {
        f"{JOBS}/trainingjobs/llm": [Answer(samples.job())],
        PODS: [Answer({"items": found})],
        **{f"{PODS}/{pod['metadata']['name']}/log": [Answer(make=silence)] for pod in found},
    }
    with (
        scripted(answers) as server,
        subprocess.Popen(
            [sys.executable, "-c", START, *words, "--kubeconfig", kubeconfig(tmp_path, server.url)],
            env={**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as command,
    ):
        assert asked.wait(30)
        # when the user presses Ctrl-C
        command.send_signal(signal.SIGINT)
        # then the command ends at once, without a traceback
        try:
            _, errors = command.communicate(timeout=LIMIT_S)
        finally:
            command.kill()
            ended.set()
    assert (command.returncode, errors) == (130, "")


def test_ctrl_c_at_the_question_of_a_drill_breaks_nothing(tmp_path: Path) -> None:
    # given the question whether a job may be broken, in a terminal
    terminal, stdin = pty.openpty()
    with (
        scripted({f"{JOBS}/trainingjobs/llm": [Answer(samples.drillable())]}) as server,
        subprocess.Popen(
            [
                *(sys.executable, "-c", START, "drill", "llm", "--fault", "pod", "-o", "json"),
                *("--kubeconfig", kubeconfig(tmp_path, server.url)),
            ],
            env={**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as command,
    ):
        assert command.stderr is not None
        limit = threading.Timer(LIMIT_S, command.kill)
        limit.start()
        asked = b""
        while not asked.endswith(b"[y/N]: "):
            letter = command.stderr.read(1)
            assert letter, asked
            asked += letter
        assert asked == b"This deletes one pod without a grace period of job llm. Continue? [y/N]: "
        # when the user presses Ctrl-C
        command.send_signal(signal.SIGINT)
        # then nothing is changed, and no line is among the data
        try:
            output, errors = command.communicate(timeout=LIMIT_S)
        finally:
            limit.cancel()
            command.kill()
            os.close(terminal)
            os.close(stdin)
        assert (command.returncode, output, errors) == (130, b"", b"")
        assert server.patches == []
