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
from understudy_launcher.loop import Settings
from understudy_protocol import pod
from understudy_protocol.launcher import StartWorkers
from understudy_torchrun import BACKEND
from understudy_torchrun.log import log
from understudy_torchrun.session import Session
from understudy_torchrun.stores import AgentStore, Stores


class UnderstudyRendezvous(RendezvousHandler):  # type: ignore[misc]
    """Of --nnodes and the endpoint nothing is used: how many pods make a round, and where, is the job's to say."""

    def __init__(self, parameters: Any) -> None:
        # Each agent then computes its workers' ranks; else they all ask one store, and wait for who does not come.
        os.environ["TORCH_ELASTIC_WORKER_IDENTICAL"] = "1"
        settings = _settings()
        endpoint = str(parameters.endpoint or "")
        if endpoint not in ("", settings.socket):
            log(f"ignored the rendezvous endpoint {endpoint!r}: torchrun uses the pod's sidecar at {settings.socket}")
        self._run_id = str(parameters.run_id)
        self._start: Optional[StartWorkers] = None
        self._session = Session(settings, Stores())
        self._closed = False
        # The session's thread holds the session, so that only this object's end shows that nobody needs it any more.
        weakref.finalize(self, self._session.end).atexit = False

    def get_backend(self) -> str:
        return BACKEND

    def get_run_id(self) -> str:
        """torchrun calls it also after it has started workers, and so set its signal handlers; torch 2.6 does not."""
        self._session.name_run()
        return self._run_id

    @property
    def use_agent_store(self) -> bool:
        """Whether a store listens already; if not, the worker of rank 0 serves it."""
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
        """1 where the workers are to be stopped: what for is learned in next_rendezvous."""
        return 0 if self._session.poll_members() else 1

    def is_closed(self) -> bool:
        return self._closed

    def set_closed(self) -> None:
        """For this agent alone. The job goes on: its coordinator closes the rendezvous of all members."""
        self._closed = True

    def shutdown(self) -> bool:
        """Called after a failure too, so nothing is told: the sidecar sees the process end."""
        return True


def _settings() -> Settings:
    try:
        return read_settings([], os.environ)
    except SettingError as error:
        log(str(error))
        raise SystemExit(MISCONFIGURED) from None
