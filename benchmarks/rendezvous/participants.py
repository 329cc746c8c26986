"""A child process of a peer's rendezvous: many participants, each a thread that calls the package's own code.

NVRx: `perform_rendezvous` of its barrier state, as its launcher calls it; the process of participant 0 hosts the store,
as in NVRx. torch: `next_rendezvous` of its dynamic handler on the c10d backend. No launcher, no health check, no
worker. Runs under the Python for which the peers are installed, with them on its path.
"""

from __future__ import annotations

import importlib
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from benchmarks.child import Answer, commands, reply
from benchmarks.machine import take_open_files

STORE_S = timedelta(seconds=600)
STACK_BYTES = 256 * 1024
SEGMENT_CHECK_S = 5.0

#: A scheduler's variables, which would set a participant's place.
SCHEDULER = ("SLURM_PROCID", "SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID", "CROSS_SLURM_PROCID", "GROUP_RANK")

#: (store, index, participants) -> a function that takes part in one round and returns the rank
Participate = Callable[[int], int]
Make = Callable[[Any, int, int], Participate]


class Crowd:
    def __init__(self, make: Make) -> None:
        self._make = make
        self._host_store: Any = None
        self._starts = [threading.Event(), threading.Event()]  # a round each
        self._ready: queue.Queue[str] = queue.Queue()  # "" or an error
        self._done: queue.Queue[tuple[float, int, str]] = queue.Queue()  # time, rank, error
        self._size = 0

    def host(self) -> Answer:
        """Host the store."""
        self._host_store = _tcp_store(0, is_master=True)
        return {"port": self._host_store.port}

    def stand(self, port: int, indices: list[int], of: int) -> Answer:
        """Start the participants. Returns when all are connected to the store."""
        self._size = len(indices)
        threading.stack_size(STACK_BYTES)
        for index in indices:
            threading.Thread(target=self._take_part, args=(port, index, of), daemon=True).start()
        return _failed([self._ready.get() for _ in indices]) or {}

    def take_part(self, number: int) -> Answer:
        """Release all of them. Returns when the last has its rank."""
        self._starts[number].set()
        done = [self._done.get() for _ in range(self._size)]
        failed = _failed([error for _, _, error in done])
        return failed or {"at": max(at for at, _, _ in done), "ranks": [rank for _, rank, _ in done]}

    def _take_part(self, port: int, index: int, of: int) -> None:
        started = False
        try:
            holds_store = index == 0 and self._host_store is not None
            store = self._host_store if holds_store else _tcp_store(port, is_master=False)
            participate = self._make(store, index, of)
            self._ready.put("")
            for number, start in enumerate(self._starts):
                start.wait()
                started = True
                rank = participate(number)
                self._done.put((time.monotonic(), rank, ""))
        except BaseException as error:  # noqa: BLE001 — the runner needs every error that ends a participant
            lines = f"participant {index}: {error!r}"
            self._done.put((0.0, -1, lines)) if started else self._ready.put(lines)


def _tcp_store(port: int, *, is_master: bool) -> Any:
    distributed = importlib.import_module("torch.distributed")
    shared = {"multi_tenant": True} if is_master else {}
    return distributed.TCPStore(
        "127.0.0.1", port, is_master=is_master, wait_for_workers=False, timeout=STORE_S, **shared
    )


def _failed(errors: list[str]) -> Answer | None:
    lines = [error for error in errors if error]
    return {"error": f"{len(lines)} failed, the first: {lines[0]}"} if lines else None


def nvrx() -> Make:
    barrier: Any = importlib.import_module("nvidia_resiliency_ext.fault_tolerance.ft_rendezvous_barrier")
    logging.disable(logging.WARNING)
    here = threading.local()
    # Each simulated node has its own rank, as its scheduler would set it.
    barrier.get_infrastructure_rank = lambda *_args, **_named: here.index

    def make(store: Any, index: int, of: int) -> Participate:
        here.index = index
        node = barrier._NodeDesc(f"node-{index:06d}", os.getpid(), index)
        state = barrier._RendezvousBarrierState(
            store=store, run_id="benchmark", is_store_host=index == 0, join_timeout_seconds=600, segment=None
        )

        def participate(number: int) -> int:
            if number > 0 and index == 0:
                state.open_rendezvous()
            rank, _ = state.perform_rendezvous(node, of, of, segment_check_interval=SEGMENT_CHECK_S)
            return int(rank)

        return participate

    return make


def torch_dynamic() -> Make:
    elastic = "torch.distributed.elastic.rendezvous"
    backend: Any = importlib.import_module(f"{elastic}.c10d_rendezvous_backend")
    dynamic: Any = importlib.import_module(f"{elastic}.dynamic_rendezvous")
    logging.disable(logging.WARNING)
    patience = dynamic.RendezvousTimeout(join=STORE_S, last_call=timedelta(seconds=1))

    def make(store: Any, index: int, of: int) -> Participate:
        handler = dynamic.DynamicRendezvousHandler.from_backend(
            "benchmark",
            store,
            backend.C10dRendezvousBackend(store, "benchmark"),
            of,
            of,
            local_addr=f"node-{index:06d}",
            timeout=patience,
        )
        return lambda _number: int(handler.next_rendezvous().rank)

    return make


def main() -> None:
    take_open_files()
    for name in SCHEDULER:
        os.environ.pop(name, None)
    crowd = Crowd({"nvrx": nvrx, "torch-dynamic": torch_dynamic}[sys.argv[1]]())
    requests: dict[str, Callable[..., Answer]] = {
        "host": crowd.host,
        "stand": crowd.stand,
        "take_part": crowd.take_part,
    }
    reply()  # torch is imported
    for command in commands():
        reply(**requests[command.pop("do")](**command))
    os._exit(0)  # the threads still wait in the store


if __name__ == "__main__":
    main()
