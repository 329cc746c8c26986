"""torch's stores, for the agent and for the workers.

Workers get a TCPStore in this process: it listens before the round begins, on a port that the kernel chose and that was
reported to the sidecar. Agents need no store: each computes its workers' ranks itself, and torchrun's agent uses its
store only for the barrier at its exit.
"""

from collections.abc import Collection
from typing import Any, Callable, Union

from torch.distributed import Store, TCPStore

from understudy_launcher import events as e

#: torchrun's name for the barrier that an agent enters once all its workers have exited 0.
EXIT_BARRIER = "torchelastic/agent/terminal_state"


class TCPStores:
    """The stores that listen here: one for a later round, and that of the current round."""

    def __init__(self) -> None:
        self._listening: dict[int, Any] = {}  # by port

    def make(self, keep: Collection[int]) -> Union[e.StoreReady, e.StoreFailed]:
        """Create another store. All stores end except those that listen at `keep`."""
        self._listening = {port: store for port, store in self._listening.items() if port in keep}
        try:
            store = TCPStore("localhost", 0, None, True, wait_for_workers=False)
        except Exception as error:  # noqa: BLE001 - no free port, or no torch.distributed: rank 0 serves it
            return e.StoreFailed(f"{type(error).__name__}: {error}")
        self._listening[store.port] = store
        return e.StoreReady(store.port)


class AgentStore(Store):  # type: ignore[misc]
    """The agent's store: only an exit barrier, which opens when the job is closed as succeeded."""

    def __init__(self, pass_barrier: Callable[[], None]) -> None:
        super().__init__()
        self._pass_barrier = pass_barrier

    def add(self, key: str, amount: int) -> int:
        """The agent enters a barrier, and is never the last one to enter."""
        self._check(key)
        return 0

    def wait(self, keys: list[str], *timeout: Any) -> None:
        for key in keys:
            self._check(key)
        self._pass_barrier()

    def get(self, key: str) -> bytes:
        """The last step of a barrier in other versions of torch."""
        self.wait([key])
        return b""

    def set(self, key: str, value: Any) -> None:
        self._check(key)

    def _check(self, key: str) -> None:
        if not key.startswith(EXIT_BARRIER):
            raise NotImplementedError(
                f"this version of torchrun reads {key!r} from its store, which the rendezvous backend understudy does "
                "not support: use torch 2.6 or newer, or launcher.mode Wrap"
            )
