"""The client of the API server, against a server whose answers the test writes."""

from contextlib import closing
from typing import Any

import pytest
import urllib3

from tests.unit.cli.server import Answer, scripted
from understudy_cli.api import Api, collection, no_answer
from understudy_cli.command_errors import NoAnswer, WrongCall
from understudy_cli.kubeconfig import Access

PODS = "/api/v1/namespaces/team-a/pods"


def items(*names: str, **metadata: str) -> dict[str, object]:
    return {"metadata": metadata, "items": [{"metadata": {"name": name}} for name in names]}


def test_a_collection_has_a_path_in_a_namespace_or_in_all() -> None:
    assert collection("v1", "pods", "team-a") == PODS
    assert collection("apps/v1", "deployments") == "/apis/apps/v1/deployments"


def test_a_list_is_read_page_by_page() -> None:
    with scripted(
        {PODS: [Answer(items("a", **{"continue": "next"})), Answer(items("b", resourceVersion="7"))]}
    ) as server:
        found = server.api().list(PODS, "understudy.dev/job-name=llm")
    assert ([item["metadata"]["name"] for item in found.items], found.version) == (["a", "b"], "7")
    assert [query.get("continue") for query in server.queries(PODS)] == [None, ["next"]]
    assert server.requests[0][2] == "Bearer secret"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Answer({"message": "pods is forbidden"}, 403), "pods is forbidden. Ask for the role view"),
        (Answer({"message": "Unauthorized"}, 401), "rejects the credentials of context test: log in again"),
        (Answer("<html>", 200), "with no JSON: is it an API server?"),
        (Answer("bad gateway", 502), f"the answer to {PODS} has status 502"),
        (Answer({"message": "x\x1b[2J"}, 500), "x"),
        (Answer("", 302), f"the answer to {PODS} has status 302"),
    ],
)
def test_an_error_is_reported_with_its_fix(answer: Answer, text: str) -> None:
    with scripted({PODS: [answer]}) as server, pytest.raises(NoAnswer) as raised:
        server.api().get(PODS)
    assert text in str(raised.value)
    assert "\x1b" not in str(raised.value)


_REFUSED = r"http://127\.0\.0\.1:\d+ does not respond \(Failed to establish a new connection: .* refused\): check"


def test_a_server_that_is_not_there_is_named() -> None:
    with scripted({}) as server:
        api = server.api()
    with pytest.raises(NoAnswer, match=_REFUSED):
        api.get(PODS)


def test_a_server_that_stops_in_the_middle_is_reported_without_the_objects_of_the_http_library() -> None:
    error = urllib3.exceptions.ReadTimeoutError(urllib3.HTTPConnectionPool("10.0.0.1", 6443), "/", "Read timed out.")
    assert str(no_answer("https://10.0.0.1:6443", error)) == (
        "the API server https://10.0.0.1:6443 does not respond (Read timed out): check the context and the network"
    )


def test_newer_credentials_are_used_after_a_rejection(tmp_path) -> None:
    # given a token file that was renewed, and a server that rejects the first request
    path = tmp_path / "token"
    path.write_text("t")
    with scripted({PODS: [Answer({}, 401), Answer(items("a"))]}) as server:
        # when a request is made
        found = server.api(token="", token_file=path).get(PODS)
    # then it is sent twice
    assert (len(server.requests), len(found["items"])) == (2, 1)


def test_a_server_with_too_many_requests_is_asked_again() -> None:
    busy = Answer({"message": "too many requests, please try again later"}, 429, retry_after="0")
    with scripted({PODS: [busy, busy, Answer(items("a"))]}) as server:
        assert len(server.api().get(PODS)["items"]) == 1
    with scripted({PODS: [busy]}) as server:
        with pytest.raises(NoAnswer, match="too many requests"):
            server.api().get(PODS)
        assert len(server.requests) == 11


def test_the_lines_of_a_log_are_read_as_they_arrive() -> None:
    stream = Answer(lines=("first", "x" * 100_000), stays=True)
    with (
        scripted({f"{PODS}/p/log": [stream]}) as server,
        closing(server.api().log(f"{PODS}/p/log", {}, follow=True)) as lines,
    ):
        assert next(lines) == "first"
        assert len(next(lines)) == 65_536


def test_a_watch_yields_changes_and_ends_with_the_error_of_the_server() -> None:
    changed = {"type": "MODIFIED", "object": {"metadata": {"name": "a"}}}
    error = {"type": "ERROR", "object": {"message": "too old", "code": 410}}
    with scripted({PODS: [Answer(lines=(changed, error))]}) as server:
        events = server.api().watch(PODS, "7")
        assert next(events).kind == "MODIFIED"
        with pytest.raises(NoAnswer, match="too old") as raised:
            next(events)
    assert raised.value.status == 410


def test_the_proxy_of_the_environment_is_used_for_servers_that_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a proxy for all servers but one
    answers = {"http://far.example/version": [Answer({"major": "1"})], "/version": [Answer({"major": "2"})]}
    with scripted(answers) as server:
        monkeypatch.setenv("http_proxy", server.url)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        # when two servers are asked
        far = Api(Access("http://far.example", "default", "a")).get("/version")
        near = server.api().get("/version")
    # then the proxy gets the address of the one, and the other is asked itself
    assert (far, near) == ({"major": "1"}, {"major": "2"})


def test_a_proxy_of_another_kind_is_rejected() -> None:
    with pytest.raises(WrongCall, match="the proxy 'socks5://x' is not supported"):
        Api(Access("https://x:6443", "default", "a", proxy="socks5://x"))


def test_the_line_end_after_a_token_is_not_a_part_of_it() -> None:
    """As in a kubeconfig with `token: |`."""
    with scripted({PODS: [Answer({})]}) as server:
        server.api(token="secret\n").get(PODS)
    assert server.requests[0][2] == "Bearer secret"


@pytest.mark.parametrize(
    ("access", "name"),
    [
        ({"token": "first\nsecond"}, "Authorization"),
        ({"impersonation": [("Impersonate-User", "j\u014drg")]}, "Impersonate-User"),
    ],
)
def test_text_that_no_header_can_have_is_reported_and_not_printed(access: dict[str, Any], name: str) -> None:
    with scripted({PODS: [Answer({})]}) as server, pytest.raises(WrongCall) as raised:
        server.api(**access).get(PODS)
    assert f"the user of context test has a character that the header {name} cannot have" in str(raised.value)
    assert "second" not in str(raised.value)


def test_a_request_names_the_account_and_each_group_as_which_the_user_acts() -> None:
    sent = (("Impersonate-User", "ada"), ("Impersonate-Group", "trainers"), ("Impersonate-Group", "viewers"))
    with scripted({PODS: [Answer({})]}) as server:
        server.api(impersonation=sent).get(PODS)
    assert [(name, value) for name, value in server.headers if name.startswith("Impersonate-")] == list(sent)


def test_a_certificate_that_cannot_be_used_is_named() -> None:
    with pytest.raises(WrongCall, match="a certificate or key of context a cannot be used"):
        Api(Access("https://x:6443", "default", "a", authority=b"no PEM"))
