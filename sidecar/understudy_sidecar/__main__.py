"""Start a sidecar: `python -m understudy_sidecar`, in a pod that the operator created or the webhook injected.

--supervised  as a child of this process, which restarts it after a crash
--alone       for a pod without a launcher: the sidecar is no member, and only stores the node health verdict

It uses uvloop: a coordinator of ten thousand members spends a third less CPU on each call than with asyncio's own loop.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Coroutine
from typing import Any

from understudy_protocol import logs
from understudy_sidecar import supervisor

SUPERVISED, ALONE = "--supervised", "--alone"


def main(arguments: list[str]) -> int:
    try:
        logs.configure(os.environ, "%(asctime)s.%(msecs)03d %(levelname)s %(message)s")
    except ValueError as error:
        logging.error("%s", error)
        return 2
    if arguments == [SUPERVISED]:
        return supervisor.run([sys.executable, "-m", "understudy_sidecar"])
    if arguments not in ([], [ALONE]):
        logging.error("expected no argument, %s or %s, got %s", SUPERVISED, ALONE, " ".join(arguments))
        return 2
    return _serve(alone=bool(arguments))


def _serve(*, alone: bool) -> int:
    # Imported here, and not in the supervisor, which runs as long as the pod and would keep the memory of the import.
    import uvloop

    from understudy_sidecar import process_setup
    from understudy_sidecar.records import CannotRead
    from understudy_sidecar.settings import SettingsError

    process_setup.prepare()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_alone() if alone else _member())
    except SettingsError as error:
        logging.error("%s", error)
        return 2
    except CannotRead as error:
        logging.error("%s", error)
        return 1
    return 0


def _member() -> Coroutine[Any, Any, None]:
    from understudy_sidecar import pool_spare
    from understudy_sidecar.app import Sidecar
    from understudy_sidecar.settings import read_settings

    if pool_spare.is_pooled(os.environ):
        return pool_spare.run(os.environ)
    settings = read_settings(os.environ)
    logs.of_process(namespace=settings.shape.namespace, job=settings.shape.name, pod=settings.pod_name)
    return Sidecar(settings).run()


def _alone() -> Coroutine[Any, Any, None]:
    from understudy_sidecar.sidecar_alone import SidecarAlone, read_alone

    return SidecarAlone(read_alone(os.environ)).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
