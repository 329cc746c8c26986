"""The member's calls to its coordinator: which addresses it calls and when, and how a connection ends. Servers that
answer differently are in test_answers.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.sidecar.calling import Calls, at, dialing, refusing
from tests.unit.sidecar.recording_handler import WELCOME, ServedSidecar, ended, serving, until
from tests.unit.sidecar.relay import Relay
from tests.unit.sidecar.silent_network import THERE, Cable, cable, may_lay_cables
from tests.unit.tcp_server import tcp_server
from tests.unit.virtual_time import in_virtual_time
from understudy_protocol import membership as m
from understudy_protocol import wire
from understudy_protocol.enums import NO_CONFIG, CloseReason
from understudy_protocol.hard_state import HardState
from understudy_sidecar import client as client_module
from understudy_sidecar.client import Address
from understudy_sidecar.records import record_hard_state, recorded_hard_state

MESSAGE_BYTES = 16 << 20

# Which addresses it calls, and when


async def test_a_client_joins_and_is_welcomed(served: ServedSidecar) -> None:
    async with dialing(at(served)) as calls:
        await until(lambda: calls.messages)
        assert calls.ups == ["127.0.0.1"]
        assert calls.messages == [WELCOME]
        assert calls.downs == 0


async def test_a_pod_with_host_network_is_called_by_its_whole_address(served: ServedSidecar) -> None:
    # given two pods on one IP
    async with serving(with_port=True) as first, serving(with_port=True) as second:
        called = f"127.0.0.1:{second.port}"
        async with dialing(Address("127.0.0.1", second.port, address=called)) as calls:
            await until(lambda: calls.messages)
            assert calls.ups == [called]
        # a call of the one that reaches the other is rejected, as the relay of a handshake
        async with dialing(Address("127.0.0.1", first.port, address=called), at(served)) as calls:
            await until(lambda: calls.ups)
            assert calls.ups == ["127.0.0.1"]
            assert first.handler.links == []


async def test_addresses_are_tried_in_their_order(served: ServedSidecar) -> None:
    async with serving("127.0.0.2") as second, dialing(refusing(), at(second), at(served)) as calls:
        await until(lambda: calls.ups)
        assert calls.ups == ["127.0.0.2"]
        assert served.handler.links == []


@in_virtual_time
async def test_all_addresses_are_tried_each_time_and_each_reason_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    first, second = refusing(), refusing()
    async with dialing(first, second) as calls:
        await asyncio.sleep(60)
        assert len(caplog.messages) == 2
        async with serving(second.host, second.port):
            await until(lambda: calls.ups)


async def test_an_address_on_which_no_process_listens_takes_no_time(
    served: ServedSidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "TCP_S", 3600.0)
    async with dialing(*[refusing() for _ in range(5)], at(served)) as calls:
        await until(lambda: calls.ups)


async def test_an_invalid_address_is_skipped(served: ServedSidecar) -> None:
    addresses = (Address("no..name", 1), Address("127.0.0.1", 99_999), Address("", 0))
    async with dialing(*addresses, at(served)) as calls:
        await until(lambda: calls.ups)


async def test_a_client_without_an_address_calls_nobody_until_it_gets_one(
    served: ServedSidecar, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with dialing() as calls:
        assert caplog.messages == []
        calls.client.dial((at(served),))
        await until(lambda: calls.ups)


async def test_a_new_call_replaces_the_one_under_way(served: ServedSidecar, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with dialing(refusing()) as calls:
        await until(lambda: "no coordinator found yet" in caplog.text)
        calls.client.dial((at(served),))
        await until(lambda: calls.ups)


async def test_a_new_call_replaces_a_connection_that_is_up(served: ServedSidecar) -> None:
    async with serving("127.0.0.2") as second, dialing(at(served)) as calls:
        await until(lambda: calls.messages)
        calls.client.dial((at(second),))
        await until(lambda: len(calls.ups) == 2)
        await until(lambda: served.handler.dropped_links == [False])
        assert calls.downs == 0
        assert [fd is None for fd in calls.sockets] == [False, True, False]


@in_virtual_time
async def test_after_close_no_address_is_called() -> None:
    async with serving() as served, dialing(refusing(), at(served)) as calls:
        calls.client.hangup()
        await asyncio.sleep(60)
        assert calls.ups == []


@in_virtual_time
async def test_after_close_a_waiting_call_is_not_made() -> None:
    address = refusing()
    async with dialing(address) as calls:
        await asyncio.sleep(0.02)  # it waits for its second round of calls
        calls.client.hangup()
        with socket.create_server((address.host, address.port)) as listener:
            listener.setblocking(False)
            await asyncio.sleep(60)
            with pytest.raises(BlockingIOError):
                listener.accept()


# How a connection ends


@in_virtual_time
async def test_it_reports_that_its_connection_has_ended_and_does_not_call_by_itself() -> None:
    async with serving() as served, dialing(at(served)) as calls:
        await until(lambda: calls.messages)
        served.handler.links[0].hangup()
        await until(lambda: calls.downs)
        await asyncio.sleep(60)
        assert (len(calls.ups), calls.downs) == (1, 1)
        assert calls.sockets[-1] is None


async def test_after_a_hangup_it_reports_no_more_messages(served: ServedSidecar) -> None:
    async with dialing(at(served)) as calls:
        await until(lambda: calls.messages)
        calls.client.hangup()
        await until(lambda: served.handler.dropped_links == [False])
        assert calls.downs == 0
        assert calls.sockets[-1] is None


@in_virtual_time
async def test_a_hangup_within_on_up_ends_the_connection() -> None:
    calls = Calls()
    calls.client._on_up = lambda host: calls.client.hangup()  # the member may have no launcher any more
    async with serving() as served:
        calls.client.dial((at(served),))
        await until(lambda: served.handler.dropped_links == [False])
        await asyncio.sleep(60)
        assert calls.downs == 0


async def test_the_last_messages_before_a_close_arrive(served: ServedSidecar) -> None:
    async with dialing(at(served)) as calls:
        await until(lambda: calls.messages)
        with socket.socket(fileno=os.dup(calls.sockets[0] or 0)) as ours:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        for _ in range(10):
            calls.client.send(m.Gone("x" * 60_000))
        calls.client.send(m.CloseAck())
        await calls.client.flushed(1.0)
        assert served.handler.messages[-1] == m.CloseAck()


@pytest.mark.parametrize("by_coordinator", [True, False], ids=["coordinator", "member"])
async def test_a_duplicate_of_the_socket_keeps_no_connection_alive_that_was_ended(
    served: ServedSidecar, by_coordinator: bool
) -> None:
    """The launcher has one, so that the end of the sidecar's process alone does not end the connection."""
    async with dialing(at(served)) as calls:
        await until(lambda: calls.messages)
        (fd,) = calls.sockets
        assert fd is not None
        duplicate = socket.socket(fileno=os.dup(fd))
        duplicate.setblocking(False)
        try:
            if by_coordinator:
                served.handler.links[0].cut()
            else:
                calls.client.hangup()
            await until(lambda: served.handler.dropped_links == [False])
            await ended(duplicate)
            with pytest.raises(OSError, match=r"pipe|reset|not connected"):
                duplicate.send(b"x")
        finally:
            duplicate.close()


@pytest.mark.parametrize(
    "text",
    ["no json", '{"type":"Assign"}', wire.encode(m.Close(CloseReason.FAILED, "x" * MESSAGE_BYTES))],
    ids=["no-json", "field-missing", "too-long"],
)
@in_virtual_time
async def test_garbage_from_the_coordinator_ends_the_connection_once(text: str) -> None:
    async with serving() as served, dialing(at(served)) as calls:
        await until(lambda: calls.messages)
        served.handler.links[0].send_encoded(text.encode())
        await until(lambda: calls.downs)
        await asyncio.sleep(60)
        assert (len(calls.ups), calls.downs) == (1, 1)


async def test_a_standby_coordinator_gets_the_leader_snapshot_of_the_largest_job(
    served: ServedSidecar, tmp_path: Path
) -> None:
    # given a job of 20,000 pods with names of 63 characters, while its voter configuration changes
    uids = tuple(f"0b2dfb52-5b4b-4a9a-9a1f-{number:012d}" for number in range(20_000))
    holders = tuple(m.RankHolder(rank, uid, f"{rank:063}", f"{rank:063}") for rank, uid in enumerate(uids))
    snapshot = m.LeaderSnapshot(
        NO_CONFIG, uids, old_voters=uids, coordinator_uid="", recoveries_by_strategy={}, rank_holders=holders
    )
    async with dialing(at(served)) as calls:
        await until(lambda: calls.messages)
        # when the coordinator sends its leader snapshot
        served.handler.links[0].send(snapshot)
        # then the member receives it, and the next process of its sidecar can read it
        await until(lambda: len(calls.messages) == 2)
        assert calls.messages[1] == snapshot
    record_hard_state(tmp_path, HardState(leader_snapshot=snapshot))
    assert recorded_hard_state(tmp_path) == HardState(leader_snapshot=snapshot)
    # and two of these files fit into the volume
    assert 2 * (tmp_path / "hard-state.json").stat().st_size < 32 << 20


async def test_a_message_of_an_unknown_type_is_dropped(served: ServedSidecar) -> None:
    async with dialing(at(served)) as calls:
        await until(lambda: calls.messages)
        served.handler.links[0].send_encoded(b'{"v":3,"type":"FromTheFuture"}')
        served.handler.links[0].send(WELCOME)
        await until(lambda: len(calls.messages) == 2)


# The machine of the coordinator


@contextlib.asynccontextmanager
async def behind(far: Cable, served: ServedSidecar) -> AsyncIterator[Address]:
    """The address of a sidecar at the far end of a cable."""
    relay, listener = Relay(at(served)), far.socket()
    listener.bind((THERE, 0))
    async with tcp_server(relay.serve, listener=listener):
        yield Address(THERE, listener.getsockname()[1], is_pod=False)
        relay.cut()


@pytest.mark.skipif(not may_lay_cables(), reason="no right to make a network namespace")
async def test_a_coordinator_behind_a_pulled_cable_is_reported_before_its_connection_ends(
    served: ServedSidecar,
) -> None:
    with cable() as far:
        async with behind(far, served) as address, dialing(address) as calls:
            await until(lambda: calls.messages)
            begun = looked_at = time.monotonic()

            def looked() -> bool:
                """Four times a second, as a member does."""
                nonlocal looked_at
                if time.monotonic() >= looked_at + 0.25:
                    looked_at = time.monotonic()
                    calls.client.watch()
                return bool(calls.unreachable)

            # given a coordinator that has nothing to send for 2 s: its kernel acknowledges the keepalives
            await until(lambda: looked() or time.monotonic() > begun + 2.0)
            assert (calls.unreachable, calls.downs) == (0, 0)
            # when its machine is cut off
            far.pull()
            # then that is reported before the kernel ends the connection
            await until(looked, limit_s=4.0)
            assert calls.downs == 0
            await until(lambda: calls.downs == 1)
