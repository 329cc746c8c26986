"""Reads and follows the logs of a job's pods: the lines of a rank or a round, in the order of time.

The kubelet writes a time before each line, by which lines of several pods are merged. A job's ranks move between pods,
so the lines of one rank may be in several logs.
"""

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar, cast

from understudy_cli.api import FORBIDDEN, NOT_FOUND, UNAUTHORIZED, Api, collection
from understudy_cli.command_errors import CommandFailed, NoAnswer, WrongCall
from understudy_cli.facts import Pod, Recovery
from understudy_cli.following import Followed
from understudy_cli.log_lines import LogFilter, Wanted
from understudy_cli.untrusted import log_line

T = TypeVar("T")
READERS = 8
#: Logs that are read, or followed at the same time. Each followed log takes a connection.
MOST_PODS = 100
TAKE_S = 0.1
RECONNECT_S = 1.0
#: Workers write stacks and tracebacks seconds before the fault is detected. Clocks of nodes may differ.
BEFORE_FAULT_S = 60.0
#: The next round's first line shows which ranks the pod had.
AFTER_FAULT_S = 60.0
#: Of a log around a fault: stacks of all workers of a pod, and the lines beside them.
MOST_BYTES = 16 << 20
#: Lines that are kept in memory until all logs were read.
MOST_LINES = 200_000


@dataclass(frozen=True, order=True)
class PodLogLine:
    """at: RFC 3339 in UTC, so the order of the texts is that of time. number: in its log."""

    at: str
    pod: str
    number: int
    text: str


def pods_to_read(pods: Sequence[Pod], wanted: Wanted) -> list[Pod]:
    """The pods whose logs are read. Of a large job with a rank: the holder of the rank, and the newest that have ended.

    Raises WrongCall for a large job without a rank: that would be thousands of logs.
    """
    if len(pods) <= MOST_PODS:
        return list(pods)
    if wanted.rank is None:
        raise WrongCall(
            f"the job has {len(pods)} pods, and this reads at most {MOST_PODS} logs: choose one with --rank"
        )
    holders = [pod for pod in pods if pod.ranks is not None and wanted.rank in pod.ranks and not pod.has_ended]
    ended = sorted((pod for pod in pods if pod.has_ended), key=lambda pod: pod.created_at or 0.0, reverse=True)
    return [*holders, *ended][:MOST_PODS]


def read_lines(api: Api, pods: Sequence[Pod], wanted: Wanted, tail: int) -> tuple[list[PodLogLine], bool]:
    """The newest `tail` lines of all pods (-1: all), and whether any line had the prefix of a rank. Raises NoAnswer if
    no log could be read.
    """
    started = [pod for pod in pods if pod.node and pod.trainer]
    results = _of_each(lambda pod: _read_pod(api, pod, wanted, tail), started)
    failures = [result for result in results if isinstance(result, NoAnswer)]
    if failures and len(failures) == len(results):
        raise failures[0]
    found = [result for result in results if not isinstance(result, NoAnswer)]
    lines = sorted(line for some, _ in found for line in some)
    return lines if tail < 0 else lines[len(lines) - min(tail, len(lines)) :], any(has for _, has in found)


def lines_around(api: Api, pods: Sequence[Pod], fault: Recovery) -> dict[str, list[str]]:
    """By pod: the lines of its log from BEFORE_FAULT_S before the fault until AFTER_FAULT_S after its recovery.

    Pods that wrote more than MOST_BYTES meanwhile are left out: a part of a log does not show which lines are missing.
    Raises NoAnswer if no log could be read.
    """
    if fault.detected_at is None:
        return {}
    ended_at = fault.ended_at
    until = None if ended_at is None else _rfc3339(ended_at + AFTER_FAULT_S).removesuffix("Z")  # before its fractions
    query = {"sinceTime": _rfc3339(fault.detected_at - BEFORE_FAULT_S)}

    def read(pod: Pod) -> list[str] | NoAnswer | None:
        found, size = list[str](), 0
        try:
            with contextlib.closing(_lines(api, pod, query, follow=False)) as lines:
                for line in lines:
                    if until is not None and line.at >= until:
                        break
                    found.append(line.text)
                    size += len(line.text)
                    if size > MOST_BYTES:
                        return None
        except NoAnswer as error:
            return error
        return found

    started = [pod for pod in pods if pod.node and pod.trainer]
    results = dict(zip([pod.name for pod in started], _of_each(read, started), strict=True))
    errors = [result for result in results.values() if isinstance(result, NoAnswer)]
    if errors and len(errors) == len(results):
        raise errors[0]
    return {name: lines for name, lines in results.items() if isinstance(lines, list)}


def _of_each(read: Callable[[Pod], T], pods: Sequence[Pod]) -> list[T]:
    """What `read` returns for each pod. Raises its error. Ctrl-C does not wait for the logs that are being read, as
    concurrent.futures would.
    """
    waiting, ended = queue.SimpleQueue[int](), queue.SimpleQueue[tuple[int, T | None, Exception | None]]()
    for number in range(len(pods)):
        waiting.put(number)

    def work() -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                number = waiting.get_nowait()
                try:
                    ended.put((number, read(pods[number]), None))
                except Exception as error:  # noqa: BLE001 (the caller gets it)
                    ended.put((number, None, error))

    for _ in pods[:READERS]:
        threading.Thread(target=work, daemon=True).start()
    found: dict[int, T] = {}
    for _ in pods:
        number, result, error = ended.get()
        if error is not None:
            raise error
        found[number] = cast(T, result)
    return [found[number] for number in range(len(pods))]


def _rfc3339(at: float) -> str:
    """Whole seconds in UTC: the query sinceTime has no others."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _read_pod(api: Api, pod: Pod, wanted: Wanted, tail: int) -> tuple[list[PodLogLine], bool] | NoAnswer:
    filtered = LogFilter(wanted)
    kept: deque[PodLogLine] = deque(maxlen=MOST_LINES if tail < 0 else min(tail, MOST_LINES))
    # Lines of a rank or a round are found only by reading the whole log.
    limit = {"tailLines": str(tail)} if tail >= 0 and wanted == Wanted() else {}
    try:
        for line in _lines(api, pod, limit, follow=False):
            if filtered.takes(line.text):
                kept.append(line)
    except NoAnswer as error:
        return error
    return list(kept), filtered.has_prefixes


def _lines(api: Api, pod: Pod, query: dict[str, str], *, follow: bool) -> Generator[PodLogLine]:
    path = f"{collection('v1', 'pods', pod.namespace)}/{pod.name}/log"
    given = {"container": pod.trainer, "timestamps": "true", **query}
    for number, raw in enumerate(api.log(path, given, follow=follow)):
        at, _, text = raw.partition(" ")
        yield PodLogLine(_in_utc(at[:40]), pod.name, number, log_line(text))


def _in_utc(at: str) -> str:
    """A kubelet writes the offset of its node's time zone. Nanoseconds, which a datetime does not have, stay."""
    if at.endswith("Z"):
        return at
    try:
        moment = datetime.fromisoformat(f"{at[:19]}{at[-6:]}").astimezone(UTC)
    except (ValueError, OverflowError):
        return at
    return f"{moment.strftime('%Y-%m-%dT%H:%M:%S')}{at[19:-6]}Z"


class FollowedLogs:
    """Follows the logs of all pods that can have wanted lines, also of those that appear later.

    With a rank: the pods that have it, now or later. The lines of one pod are in order; those of several pods are
    printed as they arrive.
    """

    def __init__(self, api: Api, pods: Followed, name: str, wanted: Wanted, tail: int) -> None:
        self._api, self._pods, self._name, self._wanted, self._tail = api, pods, name, wanted, tail
        self._lines: queue.Queue[PodLogLine] = queue.Queue(maxsize=10_000)
        self._threads: dict[str, threading.Thread] = {}
        self._failure: CommandFailed | None = None  # of a thread

    def run(self, show: Callable[[PodLogLine], None]) -> None:
        """Until all pods have ended. Raises WrongCall if there are too many, or the error of a log or of the watch."""
        while self._failure is None:
            has_news = self._pods.take(TAKE_S if self._lines.empty() else 0.0)
            if has_news and self._pods.is_complete:
                self._start_new()
            if self._show_all(show) and self._is_over():
                self._show_all(show)
                return
        raise self._failure

    def _is_over(self) -> bool:
        if not self._threads or any(thread.is_alive() for thread in self._threads.values()):
            return False
        return all(pod.has_ended for pod in self._pods.objects(self._name))

    def _show_all(self, show: Callable[[PodLogLine], None]) -> bool:
        """Whether there was nothing to show."""
        is_idle = True
        while not self._lines.empty():
            show(self._lines.get())
            is_idle = False
        return is_idle

    def _start_new(self) -> None:
        for pod in self._pods.objects(self._name):
            runs = pod.node and pod.trainer and pod.state not in ("Pending", "Unschedulable")
            if pod.uid in self._threads or not runs or not self._may_have_lines(pod):
                continue
            if sum(thread.is_alive() for thread in self._threads.values()) >= MOST_PODS:
                raise WrongCall(f"-f follows at most {MOST_PODS} pods: choose one rank with --rank")
            follow = threading.Thread(target=self._follow, args=(pod,), daemon=True)
            self._threads[pod.uid] = follow
            follow.start()

    def _may_have_lines(self, pod: Pod) -> bool:
        return self._wanted.rank is None or (pod.ranks is not None and self._wanted.rank in pod.ranks)

    def _follow(self, pod: Pod) -> None:
        """Read the log to its end. A lost connection continues after the last line that was read."""
        filtered, last = LogFilter(self._wanted), ""
        while not self._api.closed.is_set():
            query = {"sinceTime": last} if last else self._first_query()
            try:
                for line in _lines(self._api, pod, query, follow=True):
                    if line.at <= last:
                        continue  # sinceTime has whole seconds
                    last = line.at
                    if filtered.takes(line.text):
                        self._lines.put(line)
                return
            except NoAnswer as error:
                if error.status == NOT_FOUND:
                    return  # the pod is gone
                if error.status in (UNAUTHORIZED, FORBIDDEN):
                    self._failure = error
                    return
                self._api.closed.wait(RECONNECT_S)  # also until the container has started (400)
            except CommandFailed as error:
                self._failure = error
                return

    def _first_query(self) -> dict[str, str]:
        """The round of a line is known only from the lines before it, so a round needs the whole log."""
        return {"tailLines": str(self._tail)} if self._tail >= 0 and self._wanted.round is None else {}
