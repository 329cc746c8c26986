"""One row of the table of fault sources: it turns a signal on a node object into a finding.

A signal is a condition, label, annotation or taint with its key, or a cordon. A row matches if the signal exists with a
value that counts: for a condition its status ("True" by default), for the others any value that is not excepted.
`polarity` gives the meaning of a match: the node is Faulty, with a class, or the source reports it as Healthy.
"""

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from understudy_operator.plan.times.rfc3339 import LAST, parse_time
from understudy_operator.plan.verdicts.findings import Finding
from understudy_operator.plan.verdicts.xids import find_xids
from understudy_protocol.enums import FaultClass


class SignalKind(Enum):
    CONDITION = "Condition"
    LABEL = "Label"
    ANNOTATION = "Annotation"
    TAINT = "Taint"
    CORDON = "Cordon"


class Polarity(Enum):
    FAULTY = "Faulty"
    HEALTHY = "Healthy"


#: Signals that keep the scheduler off a node, so that pods need no affinity against it.
_KNOWN_TO_SCHEDULER = (SignalKind.TAINT, SignalKind.CORDON)
READY = "Ready"
REASON_CHARACTERS = 200


@dataclass(frozen=True)
class NodeSignal:
    """One signal on a node object."""

    kind: SignalKind
    key: str
    value: str
    text: str = ""  # the source's own text: a condition's reason and message
    since: float | None = None  # Unix seconds; None if the object does not record it
    is_preference: bool = False  # a taint with effect PreferNoSchedule


@dataclass(frozen=True)
class FaultSource:
    """A row. Every verdict carries its name."""

    name: str
    kind: SignalKind
    keys: tuple[str, ...] = ()  # one of them has to match; `*` stands for any characters
    values: tuple[str, ...] = ()  # those that count; empty: all that are not excepted
    excepted: tuple[str, ...] = ()
    polarity: Polarity = Polarity.FAULTY
    fault_class: FaultClass = FaultClass.HARDWARE
    precedence: int = 0
    xids: frozenset[int] = field(default_factory=frozenset)  # the text has to name one of them; empty: no condition
    expires_after_s: float | None = None  # since the signal began
    until: str = ""  # the node's annotation with the expiry time; "": none
    grace_s: float | None = None  # how long the node stays; limits the grace period of its pods

    def make_finding(self, signal: NodeSignal, annotations: Mapping[str, str]) -> Finding:
        """The finding of a match."""
        text = signal.text or (f"{signal.key}={signal.value}" if signal.value else signal.key)
        return Finding(
            source=self.name,
            fault_class=self.fault_class if self.polarity is Polarity.FAULTY else None,
            reason=text[:REASON_CHARACTERS],
            until=self._until(signal, annotations),
            grace_s=self.grace_s,
            known_to_scheduler=(self.kind in _KNOWN_TO_SCHEDULER and not signal.is_preference) or signal.key == READY,
        )

    def _until(self, signal: NodeSignal, annotations: Mapping[str, str]) -> float | None:
        """When it expires: the earlier time if both rules apply."""
        ends = [time_in(annotations.get(self.until, ""))] if self.until else []
        if self.expires_after_s is not None and signal.since is not None:
            ends.append(signal.since + self.expires_after_s)
        return min((end for end in ends if end is not None), default=None)

    def matches(self, signal: NodeSignal) -> bool:
        if signal.kind is not self.kind or not self._is_key(signal.key):
            return False
        value = plain(signal.value)
        if value in map(plain, self.excepted) or (self.values and value not in map(plain, self.values)):
            return False
        return not self.xids or bool(self.xids & find_xids(f"{signal.value} {signal.text}"))

    def _is_key(self, key: str) -> bool:
        return self.kind is SignalKind.CORDON or any(fnmatch.fnmatchcase(key, pattern) for pattern in self.keys)


def findings(
    signals: Iterable[NodeSignal], annotations: Mapping[str, str], table: Iterable[FaultSource]
) -> tuple[Finding, ...]:
    """All findings of the table about a node, the one that counts most first; verdicts.py has the order."""
    every = tuple(signals)
    matched = [(source, signal) for source in table for signal in every if source.matches(signal)]
    found = [(-source.precedence, source.make_finding(signal, annotations)) for source, signal in matched]
    found.sort(key=lambda entry: (entry[0], entry[1].rank))  # stable: equal ranks keep the order of the table
    return tuple(finding for _, finding in found)


def time_in(text: str) -> float | None:
    """The time in RFC 3339 text or Unix seconds; None for any other text."""
    try:
        return min(float(text), LAST) if text.strip().isdigit() else parse_time(text.strip())
    except ValueError:
        return None


def plain(value: str) -> str:
    """The form in which values are compared."""
    return value.strip().casefold()
