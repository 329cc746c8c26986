"""All members and the operator, as a coordinator sees them: they call, prove the key, and answer each message at once.

They have real sessions and messages, but no state machine: a script answers each message. The process that is
measured gets one batch of frames at a time. Acks come before all reports that workers have started, and these before
the first steps, as on a cluster, where an Ack takes a moment and a start takes seconds.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.rendezvous import job
from understudy_protocol import compiled, handshake, observer, pod, wire
from understudy_protocol import membership as m
from understudy_protocol.enums import NO_CONFIG, NO_ROUND, NO_TERM, ConfigVersion, RoundToken, Term, WorkersState
from understudy_protocol.frames import Frames, Opcode, frame
from understudy_protocol.handshake import Call, HandshakeCaller, Role
from understudy_protocol.sessions import Session
from understudy_protocol.snapshots import CopyPlan, KeptSteps, MadeStep, SavedStep, SavedSteps
from understudy_protocol.upgrade import request

OPERATOR = 0  # its number; members have the numbers from 1 on
BATCH = 500
#: Members that have called and have no session yet: as many as the server's backlog. More would only wait longer.
CALLING = 4096
#: So long that the training never stalls: else the coordinator would ask all members meanwhile.
STEP_S, PAUSE_S = 60.0, 0.5
ANSWER_BYTES = 1 << 30
ACKS, STARTS, STEPS = range(3)  # the order of what members send
SAVED = (999, 1000)  # the steps of the two snapshots that each pod makes in a round

_HANDSHAKE = wire.message_types(handshake)
_MEMBERSHIP = wire.message_types(m)
Bytes = tuple[int, bytes]


@dataclass(frozen=True)
class Known:
    """The knowledge of all members before they call: nothing, or a round that trains."""

    token: RoundToken = NO_ROUND
    term: Term = NO_TERM
    config_version: ConfigVersion = NO_CONFIG
    disconnected_s: float | None = None


@dataclass
class Progress:
    """Of all members: how many have joined, got a Welcome, and have the newest round; and all messages."""

    joined: int = 0
    welcomed: int = 0
    round: int = -1  # the newest
    assigned: int = 0  # to it
    stepped: int = 0
    called_again: int = 0  # their calls were ended before the coordinator had read their proof of the key
    sent: int = 0
    received: int = 0


def join_of(number: int, size: int, known: Known) -> m.Join:
    """Names are as long as on a cluster. The members after the first `size` are spares."""
    rank = number - 1 if number <= size else None
    claims = known.token > NO_ROUND and rank is not None
    return m.Join(
        f"{number:08x}-52ab-4c1e-9b1d-6f0a{number:08x}",
        f"llama-405b-workers-0-{number:06d}-x7k2p",
        f"gke-a3-mega-pool-{number % 16}-{number:08x}-0f3k",
        f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}",
        rank,
        known.token,
        rank if claims else None,
        WorkersState.RUNNING if claims else WorkersState.IDLE,
        40000,
        known.term,
        known.config_version,
        group_world_size=size if claims else 0,
        store_port=40001,
        stepped=known.token if claims else NO_ROUND,
        disconnected_s=known.disconnected_s,
    )


class Closed(RuntimeError):
    """The coordinator has ended a connection, which no case of the benchmark expects."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"the coordinator has closed the connection of member {number}: {reason}")


def _payload(number: int, found: tuple[int, bytes]) -> bytes:
    if found[0] == Opcode.CLOSE:
        raise Closed(number, found[1][2:].decode())
    return found[1]


class Members:
    def __init__(self, size: int, ip: str, known: Known) -> None:
        """ip: of the coordinator."""
        self._size, self._ip, self._known = size, ip, known
        self._waiting: deque[int] = deque()  # have not called yet
        self._calling: dict[int, HandshakeCaller] = {}
        self._sessions: dict[int, Session] = {}
        self._joined: set[int] = set()
        self._answered: set[int] = set()  # the coordinator has read their proof
        self._outbox: tuple[deque[tuple[int, Any]], ...] = (deque(), deque(), deque())
        self._rounds: dict[int, RoundToken] = {}
        self._stepped: set[int] = set()
        self._plans: dict[int, CopyPlan] = {}  # with snapshots; each pod makes two in a round
        self._assigned: Counter[RoundToken] = Counter()
        self.progress = Progress()

    def call(self, first: int, count: int) -> None:
        self._waiting.extend(range(first, first + count))

    def send(self, number: int, message: Any) -> None:
        self._outbox[ACKS].append((number, message))

    def exchange(self, written: list[Bytes]) -> list[Bytes]:
        """Read these bytes of the coordinator (none: it has ended the connection); return the next ones for it.

        Raises Closed.
        """
        for number, data in written:
            self._read(number, data)
        batch: list[Bytes] = []
        while len(batch) < BATCH and (found := self._next()) is not None:
            batch.append(found)
        return batch

    def _next(self) -> Bytes | None:
        for box in self._outbox:
            while box:
                number, message = box.popleft()
                if number in self._calling or number in self._sessions:  # else its call was ended
                    return number, self._encoded(number, message)
        if not self._waiting or len(self._calling) >= CALLING:
            return None
        number = self._waiting.popleft()
        role, key = (Role.OBSERVER, job.OPERATOR) if number == OPERATOR else (Role.MEMBER, None)
        uid = "" if number == OPERATOR else join_of(number, self._size, self._known).pod_uid
        self._calling[number] = HandshakeCaller(job.KEY, role, job.UID, Call(uid, self._ip), key)
        self.progress.sent += 1
        return number, request(self._ip, pod.COORDINATOR_PORT, pod.MEMBERSHIP_PATH)[0]

    def _encoded(self, number: int, message: Any) -> bytes:
        if isinstance(message, bytes):
            return message
        self.progress.sent += 1
        if isinstance(message, m.Join):
            self._joined.add(number)
            self.progress.joined = len(self._joined)
        self.progress.stepped += isinstance(message, m.Progress)
        return frame(Opcode.BINARY, self._sessions[number].seal(compiled.encode(message)), masked=True)

    def _read(self, number: int, data: bytes) -> None:
        if not data:
            self._on_end(number)
            return
        if number in self._calling:
            self._on_handshake(number, self._calling[number], data)
            return
        frames = Frames(bytearray(data), masked=False, limit=ANSWER_BYTES)
        frames.message, session = Opcode.BINARY, self._sessions[number]
        while (found := frames.take()) is not None:
            self.progress.received += 1
            if found[0] == Opcode.PING:
                continue  # only the kernel of a member has to acknowledge it
            text = session.open(_payload(number, found))
            self._answered.add(number)
            if number != OPERATOR:
                self._on_message(number, compiled.decode(text, _MEMBERSHIP))

    def _on_end(self, number: int) -> None:
        """A call that the coordinator has not answered in time is made again, after all others."""
        if number in self._answered:
            raise Closed(number, "no reason")
        self._calling.pop(number, None)
        self._sessions.pop(number, None)
        self._joined.discard(number)
        self.progress.joined = len(self._joined)
        self.progress.called_again += 1
        self._waiting.append(number)

    def _on_handshake(self, number: int, caller: HandshakeCaller, data: bytes) -> None:
        self.progress.received += 1
        if data.startswith(b"HTTP/1.1 101 "):
            self.progress.sent += 1
            hello = frame(Opcode.TEXT, compiled.encode(caller.hello), masked=True)
            self._outbox[ACKS].append((number, hello))
            return
        found = Frames(bytearray(data), masked=False, limit=ANSWER_BYTES).take()
        assert found is not None, "an Answer is one frame"
        _, session = caller.finish(compiled.decode(_payload(number, found), _HANDSHAKE))
        del self._calling[number]
        self._sessions[number] = session
        self.progress.sent += 1
        self._outbox[ACKS].append((number, frame(Opcode.BINARY, session.seal(b""), masked=True)))
        if number == OPERATOR:
            appoint = observer.Appoint(job.EPOCH, -1, {})
            self._outbox[ACKS].extend([(number, appoint)] if self._known.token == NO_ROUND else [])
        else:
            self._outbox[ACKS].append((number, join_of(number, self._size, self._known)))

    def _on_message(self, number: int, message: Any) -> None:
        match message:
            case m.Welcome():
                self.progress.welcomed += 1
            case m.Assign(token):
                self._on_assign(number, token, message.copies)
            case m.Restore(token):
                self._step(number, token)
            case m.FetchCopy(token, saved):
                self.send(number, m.CopyFetched(token, saved, whole=(saved,)))
            case m.PlanCopies(token, plan):
                kept = self._kept(number, plan)
                if number not in self._rounds:
                    self.send(number, m.CopiesKept(token, kept))
            case m.Heartbeat(heartbeat):
                self.send(number, m.HeartbeatAck(heartbeat))
            case m.ConfigChange(version):
                self.send(number, m.ConfigChangeAck(version))
            case m.RequestVote(term):
                self.send(number, m.VoteGranted(term))
            case m.LeaseRenewal() | m.LeaderSnapshot() | m.NodeVerdict() | m.Standby():
                pass
            case _:
                raise AssertionError(f"no fault is simulated that leads to {message}")

    def _on_assign(self, number: int, token: RoundToken, plan: CopyPlan | None) -> None:
        self._assigned[token] += 1
        newest = max(self._assigned)
        self.progress.round, self.progress.assigned = newest.round, self._assigned[newest]
        before = self._rounds.get(number)
        self._rounds[number] = token
        self.send(number, m.Ack(token))
        if plan is None:
            self._outbox[STARTS].append((number, m.Started(token)))
            self._step(number, token)
        else:  # its workers step after Restore
            made = None if before is None else MadeStep(before, SAVED[-1])
            started = m.Started(token, SavedSteps(_saved_in(before), made), self._kept(number, plan))
            self._outbox[STARTS].append((number, started))

    def _step(self, number: int, token: RoundToken) -> None:
        pause_s = PAUSE_S if number in self._stepped else None
        self._stepped.add(number)
        self._outbox[STEPS].append((number, m.Progress(token, 1, None, STEP_S, 0.0, pause_s)))

    def _kept(self, number: int, plan: CopyPlan) -> tuple[KeptSteps, ...]:
        """The copies that this member keeps now, and kept in the plan before: of the newest round that has ended."""
        before = {owner.group_rank for owner in self._plans[number].owners} if number in self._plans else set()
        self._plans[number] = plan
        ended = max((token for token in self._assigned if token < max(self._assigned)), default=None)
        saved = _saved_in(ended)
        return tuple(KeptSteps(x.group_rank, saved) for x in plan.owners if saved and x.group_rank in before)


def _saved_in(token: RoundToken | None) -> tuple[SavedStep, ...]:
    return () if token is None else tuple(SavedStep(token, step) for step in SAVED)


def serve(pipe: Connection, size: int, ip: str, known: Known) -> None:
    """Answer the measured process, until it closes its end."""
    members = Members(size, ip, known)
    requests: dict[str, Callable[..., Any]] = {
        "call": members.call,
        "send": members.send,
        "exchange": members.exchange,
    }
    while True:
        try:
            name, *arguments = pipe.recv()
        except EOFError:
            return
        pipe.send((requests[name](*arguments), replace(members.progress)))
