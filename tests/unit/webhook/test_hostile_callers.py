"""Requests to the webhook from hosts other than the API server: real TLS, real openssl, addresses of 127.0.0.0/8."""

import asyncio
import base64
import contextlib
import io
import json
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from benchmarks.machine import Usage
from benchmarks.webhook import hostile
from benchmarks.webhook.__main__ import server
from tests.cluster.paths import CHECKOUT
from tests.unit.operator.metrics.reading import scraped
from tests.unit.webhook.golden import IMAGE, pod
from tests.unit.webhook.test_certificates import HOST, REVIEW, write
from understudy_operator.runtime import bounded_server
from understudy_webhook import openssl
from understudy_webhook.__main__ import read_clients
from understudy_webhook.review import NoReview, read_request
from understudy_webhook.rotation import CertificateSet
from understudy_webhook.serving import Clients, Serving

LIFE_S = 90 * 24 * 3600.0

#: The size of the largest object that etcd stores in a review, with the object before the change: twice 1.5 MiB, and
#: 128 KiB for the rest.
LARGEST = 3_276_800


@asynccontextmanager
async def listening(folder: Path, clients: Clients | None = None) -> AsyncIterator[tuple[Serving, int, CertificateSet]]:
    made = await openssl.make_certificate([HOST], LIFE_S)
    write(folder, made)
    serving = Serving(IMAGE, clients=clients)
    serving.load(folder / "tls.crt", folder / "tls.key")
    port = await serving.listen(0)
    try:
        yield serving, port, made
    finally:
        await serving.close()


async def ask(port: int, made: CertificateSet, body: bytes, path: str = "/mutate") -> tuple[int, str]:
    context = ssl.create_default_context(cadata=made.authority)
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session,
        session.post(f"https://{HOST}:{port}{path}", data=io.BytesIO(body)) as answer,
    ):
        return answer.status, await answer.text()


def review(obj: Any, kind: str = "Pod") -> bytes:
    requests = {"uid": "u-1", "kind": {"kind": kind}, "namespace": "n", "object": obj}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": requests}).encode()


def results(serving: Serving) -> dict[str, float]:
    lines = scraped(serving.metrics.book.text())
    return {key[-1]: n for key, n in lines.items() if key[0] == "understudy_webhook_requests_total" and n}


def dropped(serving: Serving) -> dict[str, float]:
    lines = scraped(serving.metrics.book.text())
    return {key[-1]: n for key, n in lines.items() if key[0] == "understudy_webhook_dropped_total" and n}


# Size and depth ------------------------------------------------------------------------------------------------------


@pytest.mark.attack(
    "D2", "sends bodies of 8 MiB to the webhook", before="each was buffered whole, without a limit to their number"
)
async def test_a_body_larger_than_any_review_is_not_read(tmp_path: Path) -> None:
    async with listening(tmp_path) as (serving, port, made):
        context = ssl.create_default_context(cadata=made.authority)
        reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
        writer.write(b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (LARGEST + 1))
        # then the answer arrives although no byte of the body was sent
        async with asyncio.timeout(5):
            assert (await reader.readline()).startswith(b"HTTP/1.1 413")
        writer.close()
        assert dropped(serving) == {"TooLarge": 1}
        # and the largest review that an API server sends is read
        text = json.dumps(REVIEW)
        assert (await ask(port, made, (text + " " * (LARGEST - len(text))).encode()))[0] == 200


@pytest.mark.attack(
    "D2",
    "sends deeply nested objects to the webhook",
    before="RecursionError: status 500, and a traceback in the log for each",
)
@pytest.mark.parametrize(
    "body", [hostile.NESTED, hostile.SHALLOW_NESTED, hostile.VALUES], ids=["3 MiB of [", "400 levels", "values"]
)
async def test_a_nested_object_is_rejected_without_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, body: bytes
) -> None:
    async with listening(tmp_path) as (serving, port, made):
        caplog.clear()
        status, _ = await ask(port, made, body)
        assert status == 400
        assert caplog.records == []
        assert results(serving) == {"Malformed": 1}
        assert (await ask(port, made, json.dumps(REVIEW).encode()))[0] == 200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[" * 1000, "at most 250000 are read|expected an AdmissionReview|recursion"),
        (hostile.SHALLOW_NESTED, "the object has more than 100 levels"),
        (hostile.VALUES, "values; at most 250000 are read"),
        (review({"metadata": {"name": "\ud800"}}).replace(b"\\ud800", b"\xff"), "expected an AdmissionReview"),
        (review([]), "Expected `object | null`, got `array`"),
        (review({}).replace(b'"u-1"', b"1"), "Expected `str`, got `int`"),
    ],
)
def test_invalid_requests_are_not_read_as_reviews(body: bytes, message: str) -> None:
    with pytest.raises(NoReview, match=message):
        read_request(body)


def test_a_review_of_the_largest_job_is_answered() -> None:
    # given the maximum of 1.5 MiB of replicatedJobs, in both objects of a change
    template = pod("job")["spec"]
    groups = [{"name": f"g{number}", "template": {"spec": {"template": {"spec": template}}}} for number in range(256)]
    job = {"metadata": {"name": "x"}, "spec": {"replicatedJobs": groups}}
    requests = {"uid": "u", "kind": {"kind": "TrainingJob"}, "object": job, "oldObject": job}
    body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": requests}).encode()
    assert read_request(body)["object"] == job


# Time ----------------------------------------------------------------------------------------------------------------


@pytest.mark.attack(
    "D2", "sends a TrainingJob whose check takes minutes", before="the webhook gave no other answer meanwhile"
)
# The signal may arrive in a callback of the garbage collector, where Python reports the exception and goes on.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_an_answer_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    # given a job that no API server accepts: 15,000 replicatedJobs, each of which is searched in a list of 15,000
    body = hostile.EXPENSIVE
    async with listening(tmp_path) as (serving, port, made):
        began = time.monotonic()
        status, text = await ask(port, made, body, "/validate")
        assert (status, text) == (413, "the answer takes more than 0.25 s\n")
        assert time.monotonic() - began < 5.0
        assert results(serving) == {"Expensive": 1}


@asynccontextmanager
async def expensive_requests(port: int, made: CertificateSet) -> AsyncIterator[None]:
    """Eight addresses send nothing else, one after the other."""
    head = b"POST /validate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(hostile.EXPENSIVE)
    context = ssl.create_default_context(cadata=made.authority)

    async def send_endlessly(address: str) -> None:
        while True:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=context, server_hostname=HOST, local_addr=(address, 0)
            )
            with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    writer.write(head + hostile.EXPENSIVE)
                    await reader.readuntil(b"more than 0.25 s\n")

    sending = [asyncio.create_task(send_endlessly(f"127.0.0.{66 + number}")) for number in range(8)]
    try:
        yield
    finally:
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)


@pytest.mark.attack(
    "D2",
    "eight addresses send only requests with expensive answers",
    before="each step of another connection, from TCP to the answer, waited for one of them: 1.4 s",
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_new_connection_waits_for_at_most_two_expensive_answers_in_all_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given pauses that suffice on a busy machine, and an address that has been answered
    monkeypatch.setattr(bounded_server, "PAUSE_S", 0.5)
    async with listening(tmp_path) as (serving, port, made):
        assert (await ask(port, made, json.dumps(REVIEW).encode()))[0] == 200
        # and a server that computes one expensive answer of other addresses after the other
        async with expensive_requests(port, made):
            async with asyncio.timeout(30.0):
                while results(serving).get("Expensive", 0) < 1:  # noqa: ASYNC110 (nothing reports it)
                    await asyncio.sleep(0.01)
            # when that address connects again and sends a request, then it waits for the current answer and one more
            for _ in range(3):
                before = results(serving)["Expensive"]
                assert (await ask(port, made, json.dumps(REVIEW).encode()))[0] == 200
                assert results(serving)["Expensive"] - before <= 2


async def test_an_error_is_logged_once_and_counted_each_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # given an object that no API server sends: its metadata is a list
    body = review({"metadata": [], "spec": {}})
    async with listening(tmp_path) as (serving, port, made):
        for _ in range(3):
            assert (await ask(port, made, body))[0] == 500
        assert [record.levelname for record in caplog.records if record.name.startswith("understudy")] == ["ERROR"]
        assert results(serving) == {"Failed": 3}


async def test_a_callers_text_takes_one_short_line_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    raw = pod("job")
    raw["metadata"]["annotations"]["understudy.dev/container"] = "x\nERROR forged line " + "y" * 100_000
    async with listening(tmp_path) as (_, port, made):
        caplog.set_level("INFO")
        caplog.clear()
        assert (await ask(port, made, review(raw)))[0] == 200
        (record,) = [record for record in caplog.records if record.name.startswith("understudy")]
        assert len(record.getMessage()) < 600
        assert "\n" not in record.getMessage()


@pytest.mark.attack("D2", "fills the webhook's log with refused pods", before="a line for each, as long as its message")
async def test_endless_rejections_take_a_few_lines_of_the_log_a_second(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    raw = pod("job")
    raw["metadata"].setdefault("annotations", {})["understudy.dev/launcher"] = "wrap"
    body = review(raw)
    async with listening(tmp_path) as (serving, port, made):
        caplog.set_level("INFO")
        caplog.clear()
        began = time.monotonic()
        for _ in range(60):
            assert (await ask(port, made, body))[0] == 200
        seconds = time.monotonic() - began
        lines = [record for record in caplog.records if record.name.startswith("understudy")]
        assert 10 <= len(lines) <= 10 * (int(seconds) + 2)
        assert results(serving) == {"Refused": 60}


# Callers --------------------------------------------------------------------------------------------------------------


async def certificate(folder: Path, name: str) -> tuple[Path, str]:
    """A client certificate with its key in a file, and its authority."""
    await asyncio.to_thread(folder.mkdir)
    authority = ("-subj", f"/CN=authority of {name}", "-days", "1")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    await openssl.run("req", "-x509", *curve, "-keyout", f"{folder}/ca.key", *authority, "-out", f"{folder}/ca.crt")
    await openssl.run(
        "req", "-new", *curve, "-keyout", f"{folder}/key", "-subj", f"/CN={name}", "-out", f"{folder}/csr"
    )
    signed_by = ("-CA", f"{folder}/ca.crt", "-CAkey", f"{folder}/ca.key", "-CAcreateserial", "-days", "1")
    await openssl.run("x509", "-req", *signed_by, "-in", f"{folder}/csr", "-out", f"{folder}/crt")
    certificate, key, authority_pem = [
        await asyncio.to_thread((folder / name).read_text) for name in ("crt", "key", "ca.crt")
    ]
    await asyncio.to_thread((folder / "pem").write_text, certificate + key)
    return folder / "pem", authority_pem


async def called(port: int, made: CertificateSet, shown: Path | None) -> str:
    """The status, or the error's name, of a call with that client certificate."""
    context = ssl.create_default_context(cadata=made.authority)
    if shown is not None:
        context.load_cert_chain(shown)
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session,
            session.post(f"https://{HOST}:{port}/mutate", data=json.dumps(REVIEW).encode()) as answer,
        ):
            return str(answer.status)
    except (aiohttp.ClientError, OSError):
        return "no answer"


@pytest.mark.attack(
    "D2", "calls the webhook from any pod, with a client authority configured", before="every caller got an answer"
)
async def test_only_the_api_server_gets_an_answer_if_a_client_authority_is_configured(tmp_path: Path) -> None:
    shown, authority = await certificate(tmp_path / "ours", "kube-apiserver")
    strangers, _ = await certificate(tmp_path / "theirs", "kube-apiserver")
    async with listening(tmp_path, Clients(authority, frozenset({"kube-apiserver"}))) as (serving, port, made):
        assert await called(port, made, shown) == "200"
        assert await called(port, made, None) == "no answer"
        assert await called(port, made, strangers) == "no answer"
        assert results(serving) == {"Injected": 1}
    # and of one authority, only the configured names are accepted
    async with listening(tmp_path, Clients(authority, frozenset({"another"}))) as (serving, port, made):
        assert await called(port, made, shown) == "403"
        assert results(serving) == {"UnknownCaller": 1}
    async with listening(tmp_path, Clients(authority)) as (_, port, made):
        assert await called(port, made, shown) == "200"


async def test_clients_are_read_from_the_environment(tmp_path: Path) -> None:
    _, authority = await certificate(tmp_path / "ours", "kube-apiserver")
    encoded = base64.b64encode(authority.encode()).decode()
    assert read_clients({}) is None
    assert read_clients({"UNDERSTUDY_CLIENT_CA": encoded, "UNDERSTUDY_CLIENT_NAMES": "a, b"}) == Clients(
        authority, frozenset({"a", "b"})
    )
    for wrong in ({"UNDERSTUDY_CLIENT_CA": "eHh4"}, {"UNDERSTUDY_CLIENT_CA": "!"}, {"UNDERSTUDY_CLIENT_NAMES": "a"}):
        with pytest.raises(ValueError, match=r"webhook\.clients\.caBundle"):
            read_clients(wrong)


# A thousand at once --------------------------------------------------------------------------------------------------


@pytest.mark.attack(
    "D2",
    "1,000 hostile requests to the webhook at once",
    before="the webhook took 689 MB, of a limit of 256, and gave no answer for a minute",
)
@pytest.mark.timeout(120)
async def test_the_api_server_is_answered_while_a_thousand_hostile_callers_ask(
    record_property: Callable[[str, object], None],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with server(Path(folder)) as (pid, port, context), attacked(port, connections=1000, seconds=8.0):
            waits = [await send_one_request(pid, port, context) for _ in range(40)]
            peak_mb = Usage.of(pid).peak_rss_mb
    longest_s = max(wait.seconds for wait in waits)
    record_property("now", f"answered in at most {1000 * longest_s:.0f} ms, with {peak_mb:.0f} MB")
    # The server's CPU time, because the server gets less of a busy machine: half of the configuration's timeoutSeconds.
    # benchmarks.webhook measures the seconds on an idle machine.
    assert max(wait.cpu_s for wait in waits) < 2.5
    # webhook.resources of the chart
    assert peak_mb < 256


@asynccontextmanager
async def attacked(port: int, connections: int, seconds: float) -> AsyncIterator[None]:
    words = ("-m", "benchmarks.webhook.hostile", str(port), str(connections), str(seconds))
    process = await asyncio.create_subprocess_exec(sys.executable, *words, cwd=CHECKOUT)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class Wait(NamedTuple):
    seconds: float
    cpu_s: float  # that the server spent meanwhile, for any caller


async def send_one_request(pid: int, port: int, context: ssl.SSLContext) -> Wait:
    """A request on a new connection."""
    body, began, cpu_s = json.dumps(REVIEW).encode(), time.monotonic(), Usage.of(pid).cpu_s
    reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
    writer.write(b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    wait = Wait(time.monotonic() - began, Usage.of(pid).cpu_s - cpu_s)
    writer.close()
    await asyncio.sleep(0.1)
    return wait
