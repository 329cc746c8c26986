"""GET /healthz: 200 while the operator runs and answers, else 500, and the kubelet restarts the container. GET /readyz:
200 once the store has been filled: from then on this replica leads, or can take over at once. Both answers give the
replica's role, and name each task that has ended and waits for its restart (supervisor.py).

/healthz stays 200 if the API server is down or a task fails: a restarted operator would know less, and get the same
objects.
"""

from http import HTTPStatus

from understudy_operator.operator import Operator
from understudy_operator.runtime.probe_server import ProbeServer, Reply


async def serve(operator: Operator, port: int) -> ProbeServer:
    """The caller closes the server."""

    def answer(path: str) -> Reply:
        if path == "/healthz":
            return _reply(operator, operator.alive)
        if path == "/readyz":
            return _reply(operator, operator.alive and operator.synced)
        return Reply(b"GET /healthz and /readyz\n", HTTPStatus.NOT_FOUND)

    server = ProbeServer(answer)
    await server.listen(port)
    return server


def _reply(operator: Operator, is_healthy: bool) -> Reply:
    role = "leader" if operator.leads() else "standby" if operator.synced else "starting"
    failing = "".join(f"{name} ended ({error}), and restarts soon\n" for name, error in operator.waiting.items())
    status = HTTPStatus.OK if is_healthy else HTTPStatus.INTERNAL_SERVER_ERROR
    return Reply(f"{role}\n{failing}".encode(), status)
