"""Draws the next fault, its time and its target. Pure: a function of the seed, the number, and the running pods.

Rules:
- The kinds come in blocks; each block has every kind once, in an order that depends only on the seed and the block. So
  a seed replays the same kinds, whatever the cluster does, and each kind comes regularly.
- The pause before a fault and its length depend only on the seed and the number. The target also depends on the pods.
- If no pod can be the target, the fault is skipped. The next one keeps its number, and so its kind.
"""

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """The value is the name in journals and reports."""

    WORKER = "worker"
    LAUNCHER = "launcher"
    SIDECAR = "sidecar"
    POD = "pod"
    NODE = "node"
    PARTITION = "partition"
    FREEZE = "freeze"
    OPERATOR = "operator"
    API_SERVER = "API server"
    ETCD = "etcd"
    VOLUME = "volume"
    MEMORY = "memory"
    NETWORK = "network"
    CLOCK = "clock"


class Expectation(Enum):
    """Whether a fault stops a training."""

    STOPS = "stops"
    MAY_STOP = "may stop"
    RUNS_ON = "runs on"


@dataclass(frozen=True, order=True)
class Pod:
    """A pod that runs. rank: its group rank, -1 for a spare. instrumented: its workers run tests/soak/worker.py."""

    job: str
    rank: int
    name: str
    node: str
    coordinates: bool = False
    instrumented: bool = True


@dataclass(frozen=True)
class Draw:
    """target: None if the fault hits no pod or node of a job. node: only of a fault that hits a node."""

    number: int
    kind: Kind
    pause_s: float
    hold_s: float
    target: Pod | None = None
    node: str = ""
    skipped: bool = False


PAUSE_S = (3.0, 90.0)
#: The length of a fault, by its kind; the others are over at once. On a full volume a worker stops at its next step,
#: and its successors stop at their start until there is space.
HOLD_S = {
    Kind.NODE: (5.0, 60.0),
    Kind.PARTITION: (5.0, 60.0),
    Kind.FREEZE: (5.0, 60.0),
    Kind.API_SERVER: (5.0, 60.0),
    Kind.ETCD: (1.0, 15.0),
    Kind.VOLUME: (2.0, 8.0),
    Kind.NETWORK: (10.0, 60.0),
    Kind.CLOCK: (10.0, 30.0),
}
NODE_KINDS = (Kind.NODE, Kind.PARTITION, Kind.FREEZE, Kind.NETWORK)
POD_KINDS = (Kind.WORKER, Kind.LAUNCHER, Kind.SIDECAR, Kind.POD, Kind.VOLUME, Kind.MEMORY, Kind.CLOCK)
#: After so long without an answer, a pod is lost for certain: after 10 s of silence and a ping of 3 s, or later on a
#: busy machine.
LOST_AFTER_S = 25.0


def draw(seed: int, number: int, pods: Iterable[Pod]) -> Draw:
    kind = kind_of(seed, number)
    pause_s = _between(*PAUSE_S, _random(seed, number, "pause"))
    hold_s = _between(*HOLD_S[kind], _random(seed, number, "hold")) if kind in HOLD_S else 0.0
    possible, choice = sorted(pods), _random(seed, number, "target")
    if kind in NODE_KINDS:
        nodes = sorted({pod.node for pod in possible})
        return Draw(number, kind, pause_s, hold_s, node=choice.choice(nodes) if nodes else "", skipped=not nodes)
    if kind in POD_KINDS:
        targets = [pod for pod in possible if _can_be_hit(kind, pod)]
        target = choice.choice(targets) if targets else None
        return Draw(number, kind, pause_s, hold_s, target, skipped=target is None)
    return Draw(number, kind, pause_s, hold_s)


def kind_of(seed: int, number: int) -> Kind:
    block, place = divmod(number, len(Kind))
    kinds = list(Kind)
    _random(seed, block, "kinds").shuffle(kinds)
    return kinds[place]


def expectation(drawn: Draw, job: str, pods: Iterable[Pod]) -> Expectation:
    """The effect of the fault on a training, derived from the pods before it."""
    struck = hit(drawn, job, pods)
    if not struck or drawn.kind is Kind.CLOCK:
        return Expectation.RUNS_ON
    if any(pod.coordinates for pod in struck) or drawn.kind in (Kind.NETWORK, Kind.VOLUME):
        return Expectation.MAY_STOP
    if drawn.kind is Kind.SIDECAR or all(pod.rank < 0 for pod in struck):
        return Expectation.RUNS_ON
    if drawn.kind in (Kind.PARTITION, Kind.FREEZE) and drawn.hold_s < LOST_AFTER_S:
        return Expectation.MAY_STOP
    return Expectation.STOPS


def hit(drawn: Draw, job: str, pods: Iterable[Pod]) -> list[Pod]:
    """The pods of a job that a fault hits."""
    return [pod for pod in pods if pod.job == job and (pod == drawn.target or pod.node == drawn.node)]


def _can_be_hit(kind: Kind, pod: Pod) -> bool:
    match kind:
        case Kind.WORKER:
            return pod.rank >= 0
        case Kind.VOLUME:
            return pod.rank >= 0 and pod.instrumented
        case Kind.MEMORY | Kind.CLOCK:  # the times of the first pod's steps are measured, and full memory delays steps
            return pod.rank > 0 and pod.instrumented
        case _:
            return True


def _random(seed: int, number: int, purpose: str) -> random.Random:
    return random.Random(f"{seed} {number} {purpose}")


def _between(low: float, high: float, source: random.Random) -> float:
    """Log-uniform: as often between 3 and 9 as between 9 and 27."""
    return round(math.exp(source.uniform(math.log(low), math.log(high))), 1)
