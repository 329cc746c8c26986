"""Several updates in a row, each with its own faults: no replica is ever broken."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.rollout.model import (
    OF_ENGINES,
    OF_GATES,
    OF_TRAINER,
    SHORT_S,
    TRAINER,
    UNDOS,
    Cluster,
    Fault,
    Kind,
    Place,
)
from tests.unit.virtual_time import run
from understudy_rollout import Timeouts, WeightsState

REPLICAS = ("rollout-0", "rollout-1", "rollout-2")
CALLS = [(name, method) for name in REPLICAS for method in (*OF_ENGINES, "load")]
CALLS += [(f"gate of {name}", method) for name in REPLICAS for method in (*OF_GATES, "abandon")]
CALLS += [(TRAINER, method) for method in OF_TRAINER]
FAULTS = st.builds(
    lambda call, place, kind: Fault(call[0], call[1], place, kind),
    st.sampled_from(CALLS),
    st.sampled_from(Place),
    st.sampled_from(Kind),
)
#: The faults of an update, and whether it loads from a folder.
UPDATES = st.tuples(st.lists(FAULTS, max_size=3), st.booleans())
SHORT = Timeouts(*[SHORT_S] * len(Timeouts.__dataclass_fields__))


#: Regression: a server that could not leave a group and then loaded from a folder stayed in that group forever.
LEFT_IN_A_GROUP = [
    (
        [
            Fault("rollout-0", "join_group", Place.BEFORE, Kind.ERROR),
            Fault("rollout-1", "leave_group", Place.BEFORE, Kind.ERROR),
        ],
        False,
    ),
    ([], True),
]


#: The same for a trainer.
TRAINER_LEFT_IN_A_GROUP = [
    (
        [
            Fault("rollout-0", "join_group", Place.BEFORE, Kind.ERROR),
            Fault(TRAINER, "leave_group", Place.BEFORE, Kind.ERROR),
        ],
        False,
    ),
    ([], True),
    ([], False),
]


@example(LEFT_IN_A_GROUP, False)
@example(TRAINER_LEFT_IN_A_GROUP, False)
@settings(max_examples=200, deadline=None)
@given(st.lists(UPDATES, min_size=1, max_size=4), st.booleans())
def test_no_sequence_of_faults_leaves_a_replica_broken(updates: list[tuple[list[Fault], bool]], restarts: bool) -> None:
    async def story() -> None:
        cluster = Cluster(len(REPLICAS))
        not_undone: set[str] = set()  # sides with a failed undo, and without an update since
        for n, (faults, loads) in enumerate(updates, 1):
            for fault in faults:
                fault.happened, fault.raised = False, None
            cluster.loads = loads
            error = await cluster.update(f"v{n}", *faults, timeouts=SHORT)
            assert error is not None or not any(x.happened and x.method != "abandon" for x in faults)
            not_undone |= {x.side for x in faults if x.happened and x.method in UNDOS}
            if error is None:
                not_undone &= {TRAINER} if loads else set()  # the trainer takes no part in an update from a folder
            cluster.check(*not_undone)
            if restarts:
                cluster.restart()
        # and when killed sides are back, an update without faults reaches all
        cluster.restart()
        cluster.loads = False
        assert await cluster.update("last") is None
        cluster.check()
        assert {(x.weights.state, x.weights.version) for x in cluster.replicas} == {(WeightsState.FRESH, "last")}

    run(story())
