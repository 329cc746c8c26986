"""The real operator in its own process, which a test may kill."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from understudy_operator.settings import ENV_MASTER_SECRET

ROOT = Path(__file__).resolve().parents[3]
# Through stdin, so that no command line has the module's name: `pkill -f` for another operator does not hit this one.
PROGRAM = "import runpy; runpy.run_module('understudy_operator', run_name='__main__')"
STOP_S = 10.0
MASTER = b"the master secret of the tests, of 44 bytes."
LEASE = "understudy-system/understudy-operator"  # the chart's role names it
NODE_FAULTS = "understudy-system/understudy-operator-node-faults"  # the chart's role names it, too
MASTER_SECRET = bytes(range(32))  # the same for all replicas


class OperatorProcess:
    def __init__(self, kubeconfig: Path, health_port: int, log: Path, name: str = "operator-0", **env: str) -> None:
        self.name, self.health_port, self._env = name, health_port, env
        self._kubeconfig, self._log = kubeconfig, log
        self._master = kubeconfig.parent / "master-secret"  # as in all replicas
        self._master.write_bytes(MASTER)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        assert not self.runs
        master_secret = self._kubeconfig.parent / "master-secret"
        master_secret.write_bytes(MASTER_SECRET)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self._kubeconfig.parent),
            "KUBECONFIG": str(self._kubeconfig),
            "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'sidecar'}",
            ENV_MASTER_SECRET: str(master_secret),
            "UNDERSTUDY_SIDECAR_IMAGE": "example.com/sidecar:1",
            "UNDERSTUDY_MASTER_SECRET": str(self._master),
            "UNDERSTUDY_LEASE": LEASE,
            "UNDERSTUDY_NODE_FAULTS": NODE_FAULTS,
            "UNDERSTUDY_HEALTH_PORT": str(self.health_port),
            "HOSTNAME": self.name,
            "PYTHONWARNINGS": "ignore",  # of libraries; the log is for the operator
            **self._env,
        }
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        assert self._process.stdin is not None
        self._process.stdin.write(PROGRAM.encode())
        self._process.stdin.close()

    def kill(self) -> None:
        """SIGKILL: without a shutdown."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        """SIGSTOP: the process does not notice it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """SIGTERM, as in a rollout; the process has to end by itself."""
        if self._process is not None and self.runs:
            self._process.terminate()
            try:
                assert self._process.wait(STOP_S) == 0, f"the operator's exit code was not 0\n{self.log()}"
            except subprocess.TimeoutExpired:
                self.kill()
                raise

    def log(self) -> str:
        state = "runs" if self.runs else "has ended"
        return f"the operator {state}; its log ends with:\n{self._log.read_text()[-6000:]}"
