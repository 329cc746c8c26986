"""The rendezvous backend `understudy`: torch's interface, over a session with the pod's sidecar."""

import os
import weakref
from typing import Any, Optional

from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from understudy_launcher.__main__ import MISCONFIGURED, SettingError, read_settings
from understudy_launcher.loop import LauncherSettings
from understudy_protocol import pod
from understudy_protocol.launcher import StartWorkers
from understudy_torchrun import BACKEND
from understudy_torchrun.log import log
from understudy_torchrun.session import TorchrunSession
from understudy_torchrun.stores import AgentStore, TCPStores


class UnderstudyRendezvous(RendezvousHandler):  # type: ignore[misc]
    """Ignores --nnodes and the endpoint: the job defines the number of pods in a round and the sidecar's address."""

    def __init__(self, parameters: Any) -> None:
        # Each agent then computes its workers' ranks itself; else all agents wait in one store for every other agent.
        os.environ["TORCH_ELASTIC_WORKER_IDENTICAL"] = "1"
        settings = _settings()
        endpoint = str(parameters.endpoint or "")
        if endpoint not in ("", settings.socket):
            log(f"ignored the rendezvous endpoint {endpoint!r}: torchrun uses the pod's sidecar at {settings.socket}")
        self._run_id = str(parameters.run_id)
        self._start: Optional[StartWorkers] = None
        self._session = TorchrunSession(settings, TCPStores())
        self._closed = False
        # The session's thread refers to the session, so only the end of this object shows that the session is unused.
        weakref.finalize(self, self._session.end).atexit = False

    def get_backend(self) -> str:
        return BACKEND

    def get_run_id(self) -> str:
        """torchrun also calls this after it has started workers and set its signal handlers; torch 2.6 does not."""
        self._session.name_run()
        return self._run_id

    @property
    def use_agent_store(self) -> bool:
        """Whether a store listens already; if not, rank 0 serves it."""
        return self._start is not None and self._start.agent_store

    def next_rendezvous(self) -> RendezvousInfo:
        if self._closed:
            raise RendezvousClosedError("this agent has closed its rendezvous")
        start = self._session.next_round()
        self._start = start
        os.environ[pod.ENV_ROUND] = str(start.token)
        os.environ["JOB_COMPLETION_INDEX"] = str(start.group_rank)
        store = AgentStore(self._session.succeed)
        info = RendezvousStoreInfo(start.master_addr, start.master_port)
        return RendezvousInfo(store, start.group_rank, start.group_world_size, info)

    def num_nodes_waiting(self) -> int:
        """1 if the workers must stop. The agent then calls next_rendezvous, which returns the reason."""
        return 0 if self._session.poll_members() else 1

    def is_closed(self) -> bool:
        return self._closed

    def set_closed(self) -> None:
        """Closes only this agent's rendezvous. The job continues: its coordinator closes that of all members."""
        self._closed = True

    def shutdown(self) -> bool:
        """Also called after a failure, so nothing is reported: the sidecar detects the end of the process."""
        return True


def _settings() -> LauncherSettings:
    try:
        return read_settings([], os.environ)
    except SettingError as error:
        log(str(error))
        raise SystemExit(MISCONFIGURED) from None
