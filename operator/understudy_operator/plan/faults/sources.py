"""One row of the table of fault sources: which signal on a node's object says what about the node.

A signal is a condition, label, annotation or taint by its key, or that the node is cordoned. A row matches where the
signal is there with a value that counts: of a condition its status ("True" unless the row says otherwise), of the
others any value that is not among the excepted ones. `polarity` says what a match means: the node is Faulty, for a
reason of some class, or Healthy: its source vouches for the node.
"""

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from understudy_operator.plan.faults.verdicts import Finding
from understudy_operator.plan.faults.xids import find_xids
from understudy_operator.plan.rfc3339 import LAST, parse_time
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


#: What keeps the scheduler itself off a node: nobody needs to tell it again.
_KNOWN_TO_SCHEDULER = (SignalKind.TAINT, SignalKind.CORDON)
READY = "Ready"
REASON_CHARACTERS = 200


@dataclass(frozen=True)
class NodeSignal:
    """One thing that a node's object says of it."""

    kind: SignalKind
    key: str
    value: str
    text: str = ""  # in the source's own words: a condition's reason and message
    since: float | None = None  # Unix seconds; None where the object does not say
    is_preference: bool = False  # a taint that pods are only preferably kept off for


@dataclass(frozen=True)
class FaultSource:
    """A row. Its name is told with every verdict."""

    name: str
    kind: SignalKind
    keys: tuple[str, ...] = ()  # of which one has to match; `*` stands for any characters
    values: tuple[str, ...] = ()  # that count; empty: all, but for what is excepted
    excepted: tuple[str, ...] = ()
    polarity: Polarity = Polarity.FAULTY
    fault_class: FaultClass = FaultClass.HARDWARE
    precedence: int = 0
    xids: frozenset[int] = field(default_factory=frozenset)  # the text has to name one of these; empty: it need not
    expires_after_s: float | None = None  # since the signal began
    until: str = ""  # an annotation of the node that tells when it expires; "": none does
    grace_s: float | None = None  # how long the node stays: less than a pod's own grace, where that is longer

    def make_finding(self, signal: NodeSignal, annotations: Mapping[str, str]) -> Finding:
        """What a match says."""
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
        """When it expires: the sooner, where both rules are given."""
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
    """All that the table makes of a node, what counts most first: see verdicts.py for the order."""
    every = tuple(signals)
    matched = [(source, signal) for source in table for signal in every if source.matches(signal)]
    found = [(-source.precedence, source.make_finding(signal, annotations)) for source, signal in matched]
    found.sort(key=lambda entry: (entry[0], entry[1].rank))  # stable: of equal rank in the order of the table
    return tuple(finding for _, finding in found)


def time_in(text: str) -> float | None:
    """Of RFC 3339 text, or Unix seconds; None where it is neither."""
    try:
        return min(float(text), LAST) if text.strip().isdigit() else parse_time(text.strip())
    except ValueError:
        return None


def plain(value: str) -> str:
    """As values are compared."""
    return value.strip().casefold()
