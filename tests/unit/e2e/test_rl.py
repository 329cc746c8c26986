"""The checks of answers by the RL example's clients, and that none of their errors is lost."""

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from tests.e2e import rl
from tests.e2e.rl import Answers, Judgement, clients, judged, read_weights

#: By the token of the version: those of versions 3 and 4.
VERSIONS = {363.0: 3, 644.0: 4}


def test_tokens_of_the_version_in_the_header_are_whole() -> None:
    assert judged([363.0, 363], "3", VERSIONS) is Judgement.WHOLE


@pytest.mark.parametrize(("tokens", "header"), [([363.0, 644.0], "3"), ([363.0, 644.0], "4"), ([363.0, 363.0], "4")])
def test_tokens_of_two_versions_or_of_another_one_than_the_header_are_mixed(tokens: list[float], header: str) -> None:
    assert judged(tokens, header, VERSIONS) is Judgement.MIXED


@pytest.mark.parametrize("header", [None, "", "-1", "three", "3"])
@pytest.mark.parametrize("tokens", [[], [500.5], [363.0, 500.5], [None], ["363.0"], [[363.0]]])
def test_tokens_of_no_known_version_are_unknown_whatever_the_header(tokens: list[object], header: str | None) -> None:
    assert judged(tokens, header, VERSIONS) is Judgement.UNKNOWN


@pytest.mark.parametrize("header", [None, "", "-1", "three"])
def test_an_answer_without_a_version_is_unlabeled(header: str | None) -> None:
    assert judged([363.0], header, VERSIONS) is Judgement.UNLABELED


def test_only_curls_exit_code_shows_that_a_gateway_is_gone() -> None:
    assert read_weights(0, '{"state": "Fresh"}') == {"state": "Fresh"}
    assert read_weights(7, "") is None
    assert read_weights(28, "") is None
    for code, body in ((6, ""), (22, ""), (52, ""), (56, ""), (127, "")):
        with pytest.raises(AssertionError, match=f"curl exited {code}"):
            read_weights(code, body)
    with pytest.raises(ValueError, match="Expecting value"):
        read_weights(0, "")


class Server(HTTPServer):
    """Answers each request with the same body and headers."""

    body = b""
    asked = False
    answered_at = 0.0  # the last request (time.monotonic())
    headers: dict[str, str]
    got_two_requests: threading.Event  # so the first answer has been checked


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Server)
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.asked:
            self.server.got_two_requests.set()
        self.server.asked = True
        self.server.answered_at = time.monotonic()
        self.send_response(200)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_: object) -> None:
        """Writes nothing to stderr."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    served = Server(("127.0.0.1", 0), Handler)
    served.got_two_requests = threading.Event()
    monkeypatch.setattr(rl, "GATEWAY_PORT", served.server_port)
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield served
    served.shutdown()
    thread.join()
    served.server_close()


def job_on_this_machine() -> Any:
    return SimpleNamespace(pods=lambda group: [{"status": {"podIP": "127.0.0.1"}}], versions=VERSIONS)


def test_answers_are_counted_by_kind(server: Server) -> None:
    server.body, server.headers = b'{"tokens": [363.0]}', {"Understudy-Weight-Version": "3"}
    with clients(job_on_this_machine()) as seen:
        assert server.got_two_requests.wait(20)
    assert seen["whole"] > 0
    assert seen.keys() <= {"whole", "broken off"}
    # and a request counts from when it was sent, before its answer
    assert seen.request_times.keys() == {"127.0.0.1"}
    assert seen.request_times["127.0.0.1"] < server.answered_at


@pytest.mark.parametrize(
    ("body", "headers", "kind"),
    [
        (b'{"tokens": [500.5]}', {"Understudy-Weight-Version": "3"}, "UNKNOWN"),
        (b'{"tokens": [500.5]}', {}, "UNKNOWN"),
        (b'{"tokens": [363.0]}', {}, "UNLABELED"),
        (b'{"tokens": [363.0, 644.0]}', {"Understudy-Weight-Version": "3"}, "MIXED"),
    ],
)
def test_a_wrong_answer_fails_the_test(server: Server, body: bytes, headers: dict[str, str], kind: str) -> None:
    server.body, server.headers = body, headers
    with pytest.raises(AssertionError, match=kind), clients(job_on_this_machine()):
        assert server.got_two_requests.wait(20)


@pytest.mark.parametrize(("body", "error"), [(b"{}", KeyError), (b"no JSON", ValueError)])
async def test_the_error_of_one_client_ends_all_of_them(server: Server, body: bytes, error: type[Exception]) -> None:
    server.body, server.headers = body, {}
    with pytest.raises(ExceptionGroup) as raised:
        await rl._ask_all(job_on_this_machine(), Answers(), is_done=threading.Event())
    assert raised.group_contains(error)


def test_the_error_of_the_list_of_pods_fails_the_test() -> None:
    requests = threading.Event()

    def pods(group: str) -> list[dict[str, Any]]:
        requests.set()
        raise RuntimeError(f"no list of {group}")

    job = SimpleNamespace(pods=pods, versions=VERSIONS)
    with pytest.raises(ExceptionGroup) as raised, clients(job):  # type: ignore[arg-type]
        assert requests.wait(20)
    assert raised.group_contains(RuntimeError, match="no list of rollout")


def test_clients_without_any_answer_fail_the_test() -> None:
    requests = threading.Event()

    def pods(group: str) -> list[dict[str, Any]]:
        requests.set()
        return []

    job = SimpleNamespace(pods=pods, versions=VERSIONS)
    with pytest.raises(AssertionError, match="no client has got an answer"), clients(job):  # type: ignore[arg-type]
        assert requests.wait(20)
