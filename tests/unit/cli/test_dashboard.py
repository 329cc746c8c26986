"""The web server of the dashboard: which callers get the page, and the streams of its changes."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.unit.cli import samples
from understudy_cli.command_errors import NoAnswer, WrongCall
from understudy_cli.dashboard import server
from understudy_cli.dashboard.server import Board, application, follow, is_own_host, serve
from understudy_cli.facts import Fleet
from understudy_cli.reading import read_job
from understudy_cli.views.pages import PageAddress

LIMIT_S = 20.0
EVENTS = "/events?view=fleet"


@asynccontextmanager
async def serving(board: Board, hosts: tuple[str, ...] = ()) -> AsyncIterator[aiohttp.ClientSession]:
    runner = web.AppRunner(application(board, hosts), shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as session:
            yield session
    finally:
        await runner.cleanup()


def fleet(*names: str, **status: Any) -> Fleet:
    return Fleet(tuple(read_job(samples.job(name, **status)) for name in names))


async def status(session: aiohttp.ClientSession, path: str = "/", method: str = "GET", **headers: str) -> int:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with session.request(method, path, headers=sent) as answer:
        return answer.status


async def message(stream: aiohttp.ClientResponse) -> Any:
    """The next message, without comments and settings."""
    async with asyncio.timeout(LIMIT_S):
        while not (line := await stream.content.readline()).startswith(b"data: "):
            assert line, "the stream has ended"
    return json.loads(line.removeprefix(b"data: "))


# Callers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("localhost:8090", True),
        ("LOCALHOST", True),
        ("127.0.0.1:40123", True),
        ("[::1]:8090", True),
        ("10.1.2.3", True),
        ("training.example.com:8090", True),
        ("evil.example.com:8090", False),
        ("localhost.evil.example.com", False),
        ("127.0.0.1.evil.example.com", False),
        ("", False),
        ("[evil.example.com]", False),
    ],
)
def test_only_addresses_localhost_and_own_names_are_hosts(host: str, is_own: bool) -> None:
    assert is_own_host(host, ("training.example.com",)) is is_own


def test_the_case_of_a_name_of_an_option_does_not_matter() -> None:
    assert is_own_host("training.example.com:8090", ("Training.Example.COM",))


async def test_a_site_whose_name_resolves_to_the_dashboard_gets_nothing() -> None:
    board = Board()
    board.show(fleet("llm"))
    async with serving(board) as session:
        for path in ("/", EVENTS, "/dashboard.js", "/healthz"):
            assert await status(session, path, Host="evil.example.com") == 403
            assert board.streams == 0
    async with serving(board, ("training.example.com",)) as session:
        assert await status(session, Host="training.example.com") == 200


async def test_requests_of_other_sites_are_rejected_and_links_to_the_page_work() -> None:
    async with serving(Board()) as session:
        assert await status(session, EVENTS, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="cors") == 403
        assert await status(session, EVENTS, Sec_Fetch_Site="same-site", Sec_Fetch_Mode="no-cors") == 403
        assert await status(session, EVENTS, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate") == 403
        assert await status(session, "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate") == 200
        assert await status(session, "/dashboard.js", Sec_Fetch_Site="same-origin") == 200


async def test_the_page_can_only_be_read() -> None:
    async with serving(Board()) as session:
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            for path in ("/", "/events"):
                assert await status(session, path, method) == 405
        assert await status(session, "/../server.py") == 404
        assert await status(session, "/other") == 404


async def test_each_answer_has_the_policy_of_the_page() -> None:
    async with serving(Board()) as session:
        for path in ("/", "/table.js", "/other", EVENTS, "/events?view=evil"):
            async with session.get(path) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'; script-src 'self'" in policy
                assert "unsafe" not in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("view=secrets", "view: expected one of fleet, job, spares, nodes"),
        ("", "view: expected one of fleet, job, spares, nodes"),
        (f"view=job&name={'a' * 254}", "namespace, name: expected at most 253 characters"),
    ],
)
async def test_a_wrong_address_is_named(query: str, text: str) -> None:
    async with serving(Board()) as session, session.get(f"/events?{query}") as answer:
        assert (answer.status, await answer.text()) == (400, text)


# Streams --------------------------------------------------------------------------------------------------------------


async def test_a_stream_has_all_rows_first_and_then_those_that_change() -> None:
    board = Board()
    board.show(fleet("a", "b"))
    async with serving(board) as session, session.get(EVENTS) as stream:
        first = await message(stream)
        assert (set(first["set"]), set(first["set"]["jobs"])) == ({"state", "jobs"}, {"team-a/a", "team-a/b"})
        # when one job is deleted, and another one fails
        board.show(fleet("b", phase="Failed"))
        second = await message(stream)
        # then only these are in the next message
        assert (second["gone"], list(second["set"])) == ({"jobs": ["team-a/a"]}, ["jobs"])
        assert {key: row["phase"] for key, row in second["set"]["jobs"].items()} == {"team-a/b": "Failed"}


async def test_a_fleet_that_comes_while_a_message_is_sent_is_not_missed() -> None:
    board = Board()
    board.show(fleet("a"))
    stream = server.messages(board, PageAddress("fleet"))
    await anext(stream)
    board.show(fleet("a", "b"))  # before the stream waits
    async with asyncio.timeout(5.0):
        assert b"team-a/b" in await anext(stream)


async def test_a_stream_without_changes_shows_that_it_is_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEARTBEAT_S", 0.01)
    board = Board()
    stream = server.messages(board, PageAddress("fleet"))
    assert [(await anext(stream))[:2] for _ in range(3)] == [b"da", b": ", b": "]


async def test_a_large_page_comes_in_messages_of_1_000_rows() -> None:
    board = Board()
    board.show(fleet(*(f"job-{number}" for number in range(2_500))))
    async with serving(board) as session, session.get(EVENTS, read_bufsize=1 << 24) as stream:
        sizes = [sum(len(rows) for rows in (await message(stream))["set"].values()) for _ in range(3)]
        assert sizes == [1_000, 1_000, 501]  # with the state of the program


async def test_a_65th_browser_is_rejected_until_another_one_leaves() -> None:
    board = Board()
    async with serving(board) as session:
        streams = [await session.get(EVENTS) for _ in range(64)]
        assert await status(session, EVENTS) == 503
        streams[0].close()
        # the server notices it at the next message
        async with asyncio.timeout(LIMIT_S):
            number = 0
            while board.streams == 64:
                number += 1
                board.show(fleet(f"job-{number}"))
                await asyncio.sleep(0.01)
        async with session.get(EVENTS) as stream:
            assert stream.status == 200
        for each in streams:
            each.close()


async def test_browsers_with_the_same_page_share_it() -> None:
    board = Board()
    board.show(fleet("a"))
    address = PageAddress("fleet")
    assert board.page(address, 100.0) is board.page(address, 100.5)
    assert board.page(address, 100.0) is not board.page(address, 101.5)  # ages


# The program ----------------------------------------------------------------------------------------------------------


async def test_the_error_that_ends_the_fleets_ends_the_program() -> None:
    def fleets() -> Iterator[Fleet]:
        yield fleet("a")
        raise NoAnswer("pods is forbidden", 403)

    board = Board()
    with pytest.raises(NoAnswer, match="pods is forbidden"):
        await asyncio.wait_for(follow(board, fleets()), LIMIT_S)
    assert [job.name for job in board.fleet.jobs] == ["a"]


async def test_the_last_fleet_stays_when_a_local_run_has_ended() -> None:
    board = Board()
    following = asyncio.ensure_future(follow(board, iter([fleet("a"), fleet("b")])))
    async with asyncio.timeout(LIMIT_S):
        while [job.name for job in board.fleet.jobs] != ["b"]:
            await board.wait(board.fleet, LIMIT_S)
    assert not following.done()
    following.cancel()


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(WrongCall, match=f"cannot listen on 127.0.0.1, port {port}: Address already in use"):
            serve(iter(()), "127.0.0.1", port, (), print)
