"""GET /healthz: 200 while the operator runs and answers, else 500, and the kubelet restarts the container. GET /readyz:
200 once the store has been filled: from then on this replica leads, or can take over at once. Both say in a word what
the replica does, and name each task that has ended and waits to be started again (supervisor.py).

Neither an API server that is away nor a task that fails changes the 200: a restarted operator would know less, and find
the same objects.
"""

from aiohttp import web

from understudy_operator.bounded_server import PROBE_LIMITS, BoundedServer
from understudy_operator.operator import Operator


async def serve(operator: Operator, port: int) -> BoundedServer:
    """To be closed by the caller."""

    def answer(request: web.BaseRequest, _: bytes) -> web.Response:
        if request.path == "/healthz":
            return _told(operator, operator.alive)
        if request.path == "/readyz":
            return _told(operator, operator.alive and operator.synced)
        return web.Response(status=404, text="GET /healthz and /readyz\n")

    server = BoundedServer(answer, PROBE_LIMITS)
    await server.listen(port)
    return server


def _told(operator: Operator, well: bool) -> web.Response:
    what = "leads" if operator.leads() else "stands by" if operator.synced else "fills its store"
    failing = "".join(f"{name} ended ({error}), and starts again soon\n" for name, error in operator.waiting.items())
    return web.Response(text=f"{what}\n{failing}", status=200 if well else 500)
