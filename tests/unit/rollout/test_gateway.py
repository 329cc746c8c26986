"""The gateway admits requests only while the weights are known to be whole, and no answer mixes two versions."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from tests.unit.rollout.guarded import TOKEN, guarded, until
from tests.unit.rollout.model import PATIENT, Cluster, Fault, Kind, Place
from tests.unit.virtual_time import in_virtual_time
from understudy_rollout import WeightUpdate
from understudy_rollout.failures import AdmissionRefused
from understudy_rollout.gateway.app import ENGINE, WEIGHTS, GatewayApp
from understudy_rollout.gateway.flights import InFlightRequests, Policy
from understudy_rollout.gateway.proxy import Proxy
from understudy_rollout.gateway.weights_file import WeightsFile
from understudy_rollout.weights import Weights

VERSION_HEADER = "Understudy-Weight-Version"

WAIT_LIMIT_S = 45.0
LOOK_EVERY_S = 1.0
NO_FENCE = (0, 0, 0)


@in_virtual_time
async def test_a_request_to_fresh_weights_is_answered_with_their_version() -> None:
    async with guarded() as site:
        response = await site.ask()
        assert (response.status, await response.json()) == (200, {"text": "v0"})
        assert response.headers[VERSION_HEADER] == "v0"


@in_virtual_time
async def test_a_streamed_answer_is_forwarded_unbuffered() -> None:
    async with guarded() as site:
        site.server.waits, site.server.tokens = True, 3
        response = await site.ask(stream=True)
        for _ in range(3):
            assert await response.content.readany() == b"v0 "
            site.server.go_on.release()
        assert await response.content.read() == b""


@in_virtual_time
async def test_a_request_during_an_update_is_denied_with_the_reason_and_a_time_to_retry() -> None:
    async with guarded() as site:
        await site.close()
        response = await site.ask()
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
        error = (await response.json())["error"]
        assert (error["type"], error["message"]) == ("weights_updating", "the weights are being updated to version v1")


@in_virtual_time
async def test_a_health_check_does_not_reach_the_server_during_an_update() -> None:
    async with guarded("") as site:
        # given a server whose health check generates a token, in any state of its weights
        assert await site.probe() == (200, "well")
        site.server.waits = True
        probe = site.probe()
        await until(lambda: site.server.running == 1)
        # when an update begins, then neither the running check nor a new one is answered by the server
        await site.close()
        await until(lambda: site.server.running == 0)
        there = (200, "the inference server is up; its weights are being updated\n")
        assert await probe == there
        assert await site.probe() == there
        # but the end of the server is reported
        await site.server.stop()
        status = 200
        async with asyncio.timeout(10):
            while status != 502:
                status, _ = await site.probe()


@in_virtual_time
async def test_requests_after_an_update_get_its_version() -> None:
    async with guarded("") as site:
        assert (await site.ask()).status == 503
        await site.close()
        site.server.version = "v1"
        await site.admission.open("u")
        response = await site.ask()
        assert (response.status, response.headers[VERSION_HEADER]) == (200, "v1")


@in_virtual_time
async def test_uncertain_weights_stay_closed_until_an_update_is_complete() -> None:
    async with guarded() as site:
        await site.close()
        await site.admission.abandon("u", True, "the transfer failed: a reset")
        response = await site.ask()
        error = (await response.json())["error"]
        assert (response.status, response.headers["Retry-After"]) == (503, "5")
        assert (error["type"], error["message"]) == ("weights_uncertain", "the transfer failed: a reset")
        await site.close("again")
        await site.admission.open("again")
        assert (await site.ask()).status == 200


@in_virtual_time
async def test_an_update_that_touched_nothing_leaves_the_old_version_open() -> None:
    async with guarded() as site:
        await site.close()
        await site.admission.abandon("u", False, "no group")
        assert (await site.ask()).headers[VERSION_HEADER] == "v0"


@in_virtual_time
async def test_an_answer_of_known_length_comes_whole() -> None:
    async with guarded() as site:
        response = await site.ask()
        assert response.status == 200
        assert response.headers.get("Transfer-Encoding") is None
        assert response.headers["Content-Length"] == str(len(await response.read()))


@in_virtual_time
async def test_metrics_that_the_server_breaks_off_are_not_continued_with_an_error() -> None:
    async with guarded() as site:
        # given a client that gets a part of the metrics
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"Content-Length: 100000" in await reader.readuntil(b"\r\n\r\n")
        # then its connection ends after that part, so it does not take another answer for the rest
        assert await reader.read() == b"x" * 1000
        writer.close()


@in_virtual_time
async def test_running_requests_are_aborted_before_the_update_continues() -> None:
    async with guarded() as site:
        site.server.waits, site.server.tokens = True, 5
        whole, stream = site.ask(), await site.ask(stream=True)
        assert await stream.content.readany() == b"v0 "
        await until(lambda: site.server.running == 2)
        # when an update begins
        await site.close()
        # then no request runs any more, here and at the server
        assert (await site.state())["inFlight"] == 0
        await until(lambda: site.server.running == 0)
        assert site.server.broke_off == 2
        # and the client without an answer may retry, and the client with a part gets an error
        assert (await whole).status == 503
        with pytest.raises(aiohttp.ClientError):
            await stream.content.read()
        stream.close()


@in_virtual_time
async def test_running_requests_are_awaited_with_the_await_policy() -> None:
    async with guarded(policy=Policy.WAIT) as site:
        site.server.waits = True
        asked = site.ask()
        await until(lambda: site.server.running == 1)
        # when an update begins
        closing = asyncio.ensure_future(site.close())
        while (await site.state())["state"] != "Updating":
            pass
        # then no new request is admitted, and the update waits for the answer
        assert (await site.ask()).status == 503
        assert not closing.done()
        site.server.go_on.release()
        response = await asked
        assert (response.status, response.headers[VERSION_HEADER]) == (200, "v0")
        await closing


@in_virtual_time
async def test_requests_that_do_not_end_are_aborted_after_the_limit() -> None:
    async with guarded(policy=Policy.WAIT) as site:
        site.server.waits = True
        asked = site.ask()
        await until(lambda: site.server.running == 1)
        before = asyncio.get_running_loop().time()
        await site.close()
        assert WAIT_LIMIT_S <= asyncio.get_running_loop().time() - before < WAIT_LIMIT_S + 2
        assert (await asked).status == 503


@in_virtual_time
async def test_a_client_that_disconnects_ends_its_request_at_the_server() -> None:
    async with guarded() as site:
        site.server.waits = True
        asked = site.ask()
        await until(lambda: site.server.running == 1)
        asked.cancel()
        await until(lambda: site.server.running == 0)
        while (await site.state())["inFlight"]:
            pass


@in_virtual_time
async def test_a_server_that_was_restarted_is_not_trusted() -> None:
    async with guarded() as site:
        assert (await site.ask()).status == 200
        # when the server ends, and another one listens in its place
        await site.server.stop()
        await asyncio.sleep(2 * LOOK_EVERY_S)  # in virtual time
        assert (await site.state())["state"] == "Uncertain"
        await site.server.start()
        # then it gets no request until it is updated
        response = await site.ask()
        assert response.status == 503
        assert "its weights are unknown" in (await response.json())["error"]["message"]
        await site.close()
        await site.admission.open("u")
        assert (await site.ask()).status == 200


@in_virtual_time
async def test_a_request_detects_a_lost_server_too() -> None:
    async with guarded() as site:
        await asyncio.sleep(0.5)
        await site.server.stop()
        response = await site.ask()
        assert response.status == 503
        assert (await site.state())["state"] == "Uncertain"


@pytest.mark.attack("C1", "a stranger that sends a gateway messages about a weight update", before="refused, too")
@pytest.mark.parametrize("call", ["close", "join", "confirm", "open", "abandon"])
@pytest.mark.parametrize("token", [None, "Bearer guessed", "Bearer ", f"Basic {TOKEN}", TOKEN])
@in_virtual_time
async def test_messages_of_updates_need_the_token(call: str, token: str | None) -> None:
    headers = {} if token is None else {"Authorization": token}
    body = {"update": "u", "version": "v1", "fence": list(NO_FENCE), "error": ""}
    # given a gateway that is open, and one that an update has closed
    for is_closed in (False, True):
        async with guarded() as site:
            if is_closed:
                await site.close()
            before = await site.state()
            # when a stranger sends the message of an update
            async with site.client.post(f"{site.url}{WEIGHTS}/{call}", json=body, headers=headers) as response:
                # then it is refused, and changes nothing
                assert response.status == 401
            assert await site.state() == before


@pytest.mark.attack("C1", "a stranger that calls the server through its gateway", before="there was no such way")
@pytest.mark.parametrize("token", [None, "Bearer guessed", "Bearer ", TOKEN])
@in_virtual_time
async def test_calls_to_the_server_need_the_token(token: str | None) -> None:
    headers = {"Understudy-Update": "u"} | ({} if token is None else {"Proxy-Authorization": token})
    async with guarded() as site:
        # given an update that is running
        await site.close()
        # when a stranger calls the server in its name
        async with site.client.post(f"{site.url}{ENGINE}/control/receive", json={}, headers=headers) as response:
            assert response.status == 401
        # then the server receives nothing
        assert site.server.controls == []


def test_a_gateway_needs_a_token() -> None:
    with pytest.raises(ValueError, match="token: expected a secret"):
        GatewayApp(InFlightRequests(WeightsFile(Weights())), Proxy("http://x"), "")


@in_virtual_time
async def test_answers_after_an_update_have_the_number_of_its_step() -> None:
    async with guarded() as site:
        cluster = Cluster(1)
        cluster.replicas[0].admission = site.admission
        async with WeightUpdate(cluster.replicas, version=700, timeouts=PATIENT) as update:
            await update.load("700")
        response = await site.ask()
        assert (response.status, response.headers[VERSION_HEADER]) == (200, "700")


@pytest.mark.parametrize(
    ("call", "body", "message"),
    [
        ("close", b"{", "expected JSON"),
        ("close", b"[" * 60_000, "expected JSON"),
        ("close", b"[]", "expected a JSON object with fence, update, version"),
        ("close", b'{"update": "u", "version": 1.5, "fence": [0, 0, 0]}', "version: expected"),
        ("close", b'{"update": "u", "version": "1\\n2", "fence": [0, 0, 0]}', "version: expected"),
        ("close", b'{"update": "u", "version": "1", "fence": [0, 0]}', "fence: expected"),
        ("close", b'{"update": "u", "version": "1", "fence": ["0", 0, 0]}', "fence: expected"),
        ("close", b'{"update": 7, "version": "1", "fence": [0, 0, 0]}', "update: expected"),
        ("open", b'{"update": ""}', "update: expected"),
        ("abandon", b'{"update": "u", "touched": "no", "reason": ""}', "expected a boolean 'touched'"),
        ("abandon", b" " * 70_000, "expected at most 65536 bytes"),
    ],
)
@in_virtual_time
async def test_a_wrong_message_is_rejected_by_name_and_changes_nothing(call: str, body: bytes, message: str) -> None:
    async with guarded() as site:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with site.client.post(f"{site.url}{WEIGHTS}/{call}", data=body, headers=headers) as response:
            assert response.status == 400
            assert message in (await response.json())["error"]
        assert (await site.ask()).headers[VERSION_HEADER] == "v0"


@in_virtual_time
async def test_the_end_of_another_update_is_rejected() -> None:
    async with guarded() as site:
        await site.close("u")
        with pytest.raises(AdmissionRefused, match=r"409.*update other does not run here \(update u runs\)"):
            await site.admission.open("other")
        assert (await site.ask()).status == 503


@in_virtual_time
async def test_clients_cannot_change_the_servers_weights() -> None:
    async with guarded() as site, site.client.post(site.url + "/update_weights", json={}) as response:
        assert response.status == 403
        assert "POST /update_weights is not for clients" in await response.text()


@in_virtual_time
async def test_a_weight_update_with_a_gateway_closes_and_opens_it_and_leaves_it_closed_when_it_fails() -> None:
    async with guarded() as site:
        cluster, seen = Cluster(1), []
        cluster.replicas[0].admission = site.admission
        async with WeightUpdate(cluster.replicas, version="v1", timeouts=PATIENT) as update:
            seen.append((await site.ask()).status)
            await update.load("v1")
        seen.append((await site.ask()).status)
        assert seen == [503, 200]
        assert (await site.state())["version"] == "v1"
        # when the next one fails in its transfer
        await cluster.update("v2", Fault("rollout-0", "receive", Place.IN, Kind.ERROR))
        # then the state has the reason
        state = await site.state()
        assert state["state"] == "Uncertain"
        assert "the transfer of version v2 failed: Broken: rollout-0 broke in receive" in str(state["reason"])
