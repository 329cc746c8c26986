"""A pod of a local run: a sidecar, a launcher, and the kubelet's work for them.

The sidecar starts first, and the launcher once the sidecar answers the startup probe. A sidecar that ends alone is
restarted, like a native sidecar. When the launcher ends the pod ends, and the sidecar gets SIGTERM.
"""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import understudy_sidecar
from understudy_local import manifest as written
from understudy_local import process
from understudy_local.manifest import PodPlacement
from understudy_local.process import ChildProcess, Sink
from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_protocol import pod as names
from understudy_sidecar import records

#: A kubelet probes once a second; here more frequent probes disturb no other process.
PROBE_EVERY_S = 0.05
START_LIMIT_S = 60.0
RESTART_AFTER_S = 0.5
#: A sidecar ends by itself after its launcher; it may first wait for the coordinator's shutdown.
SIDECAR_ENDS_S = 10.0
KILLED = 137
#: Exit codes from here on stand for signals.
SIGNALED = 128


class LocalPod:
    """changed: called whenever the result of `observed` changes."""

    def __init__(
        self,
        manifest: Mapping[str, Any],
        place: PodPlacement,
        changed: Callable[[], None],
        sidecar_output: Sink,
        launcher_output: Sink,
    ) -> None:
        self._manifest, self.place, self._changed = manifest, place, changed
        self._log_sidecar, self._log_launcher = sidecar_output, launcher_output
        metadata = manifest["metadata"]
        self.labels: dict[str, str] = dict(metadata["labels"])
        self.annotations: dict[str, str] = dict(metadata["annotations"])
        self.exit_code: int | None = None
        self.deleting_since: float | None = None
        self._created_at = time.time()
        self._grace_s = float(manifest["spec"]["terminationGracePeriodSeconds"])
        self._is_up = self._was_ever_up = self._killed = False
        self._first_up = asyncio.Event()
        self._sidecar: ChildProcess | None = None
        self._launcher: ChildProcess | None = None
        self._end_by: asyncio.TimerHandle | None = None
        self._life = asyncio.create_task(self._run(), name=f"pod {place.pod_name}")

    @property
    def ended(self) -> bool:
        return self.exit_code is not None

    @property
    def deleting(self) -> bool:
        return self.deleting_since is not None

    @property
    def failed_to_start(self) -> bool:
        """Whether it has ended by itself with an error. A launcher that ends by a signal is an ordinary fault."""
        code = self.exit_code or 0
        return code != 0 and (self._launcher is None or code < SIGNALED)

    @property
    def holds_node(self) -> bool:
        """Whether any of its processes may be alive."""
        return not (self.ended or self._killed or (self._launcher is not None and not self._launcher.runs))

    @property
    def launcher_pid(self) -> int | None:
        return self._launcher.pid if self._launcher is not None and self._launcher.runs else None

    def observed(self) -> Pod:
        place = self.place
        index = self._manifest["metadata"]["annotations"].get(names.ANNOTATION_GROUP_RANK)
        phase = "Running" if self._was_ever_up else "Pending"
        if self.ended:
            phase = "Succeeded" if self.exit_code == 0 else "Failed"
        return Pod(
            uid=place.pod_uid,
            name=place.pod_name,
            node=place.node,
            ip=place.ip,
            phase=phase,
            spare=index is None,
            index=None if index is None else int(index),
            labels=dict(self.labels),
            annotations=dict(self.annotations),
            created_at=self._created_at,
            deleting_since=self.deleting_since,
            grace_s=self._grace_s,
            sidecar_started=self._is_up,
            sidecar_ran=self._was_ever_up,
            close=records.recorded_close(place.folder) if self.ended else None,
            trouble="",
            exit_code=self.exit_code,
        )

    def delete(self, grace_s: float | None) -> None:
        """SIGTERM, and SIGKILL at the end of the grace period. With grace 0: SIGKILL at once."""
        if self.ended:
            return
        if self.deleting_since is None:
            self.deleting_since = time.time()
            self._changed()
        if grace_s == 0 or self._launcher is None:
            self.kill()
            return
        self._launcher.terminate()
        if self._end_by is None:
            limit_s = self._grace_s if grace_s is None else grace_s
            self._end_by = asyncio.get_running_loop().call_later(limit_s, self.kill)

    def kill(self) -> None:
        """SIGKILL to all its processes, as when its machine fails."""
        if self.ended:
            return
        self._killed = True
        for started in (self._sidecar, self._launcher):
            if started is not None:
                started.kill_tree()
        if self._launcher is None:
            self._life.cancel()

    async def wait_until_over(self) -> None:
        await asyncio.gather(self._life, return_exceptions=True)

    # The kubelet's work ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        code = KILLED
        keeping: asyncio.Task[None] | None = None
        try:
            self.place.folder.mkdir(parents=True)
            keeping = asyncio.create_task(self._keep_sidecar(), name=f"sidecar {self.place.pod_name}")
            async with asyncio.timeout(START_LIMIT_S):
                await self._first_up.wait()
            code = await self._run_launcher()
        except TimeoutError:
            self._log_launcher(f"the sidecar was not ready within {START_LIMIT_S:g} s; see this log", error=True)
        except OSError as error:
            self._log_launcher(f"the pod cannot start: {error}", error=True)
        finally:
            self.exit_code = code
            self._is_up = False
            if self._end_by is not None:
                self._end_by.cancel()
            self._changed()
            if keeping is not None:
                await self._end_sidecar(keeping)

    async def _start(self, command: Sequence[str], env: Mapping[str, str], sink: Sink) -> ChildProcess:
        return await process.start(command, env, sink)

    async def _run_launcher(self) -> int:
        command = written.launcher_command(self._manifest, self.place)
        env = written.launcher_environment(self._manifest, self.place, os.environ)
        self._launcher = await self._start(command, env, self._log_launcher)
        return await self._launcher.ended()

    async def _keep_sidecar(self) -> None:
        env = written.sidecar_environment(self._manifest, self.place, os.environ)
        sources = str(Path(understudy_sidecar.__file__).parents[1])
        env["PYTHONPATH"] = ":".join(part for part in (sources, env.get("PYTHONPATH")) if part)
        while True:
            self._sidecar = await self._start([sys.executable, "-m", "understudy_sidecar"], env, self._log_sidecar)
            if await self._wait_until_up(self._sidecar):
                self._is_up = self._was_ever_up = True
                self._first_up.set()
                self._changed()
            code = await self._sidecar.ended()
            self._is_up = False
            trains = self._launcher is not None and self._launcher.runs
            if self.ended or (not trains and records.recorded_close(self.place.folder) is not None):
                return
            self._log_sidecar(f"the sidecar ended with exit code {code}: local mode restarts it", error=True)
            self._changed()
            await asyncio.sleep(RESTART_AFTER_S)

    async def _wait_until_up(self, sidecar: ChildProcess) -> bool:
        while sidecar.runs:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(self.place.ip, names.HEALTH_PORT)
                writer.close()
                return True
            await asyncio.sleep(PROBE_EVERY_S)
        return False

    async def _end_sidecar(self, keeping: asyncio.Task[None]) -> None:
        if self._sidecar is not None:
            self._sidecar.terminate()
        _, late = await asyncio.wait([keeping], timeout=SIDECAR_ENDS_S)
        if late and self._sidecar is not None:
            self._sidecar.kill_tree()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
