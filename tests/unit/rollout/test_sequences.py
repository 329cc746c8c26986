"""Updates one after the other, each with faults of its own: whatever they meet, they leave no replica broken."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.rollout.model import OF_ENGINES, OF_GATES, OF_TRAINER, SHORT_S, TRAINER, Cluster, Fault, Kind, Place
from tests.unit.virtual_time import run
from understudy_rollout import State, Timeouts

REPLICAS = ("rollout-0", "rollout-1", "rollout-2")
CALLS = [(name, method) for name in REPLICAS for method in OF_ENGINES]
CALLS += [(f"gate of {name}", method) for name in REPLICAS for method in (*OF_GATES, "abandon")]
CALLS += [(TRAINER, method) for method in OF_TRAINER]
#: Undos that fail cannot be mended by an update: a server that cannot generate is marked, and stays so.
UNDOS = ("leave_group", "resume_kv", "flush_cache", "resume_generation")
#: Of the undos only faults that are over when they are told: the server did it, or is gone.
FAULTS = st.builds(
    lambda call, place, kind: Fault(call[0], call[1], Place.AFTER if call[1] in UNDOS else place, kind),
    st.sampled_from(CALLS),
    st.sampled_from(Place),
    st.sampled_from(Kind),
)
SHORT = Timeouts(*[SHORT_S] * len(Timeouts.__dataclass_fields__))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(FAULTS, max_size=3), min_size=1, max_size=4), st.booleans())
def test_no_sequence_of_faults_leaves_a_replica_broken(updates: list[list[Fault]], restarts: bool) -> None:
    async def story() -> None:
        cluster = Cluster(len(REPLICAS))
        for n, faults in enumerate(updates, 1):
            for fault in faults:
                fault.happened, fault.raised = False, None
            error = await cluster.update(f"v{n}", *faults, timeouts=SHORT)
            assert error is not None or not any(x.happened and x.method != "abandon" for x in faults)
            cluster.check()
            if restarts:
                cluster.restart()
        # and when whoever was killed is back, an update without faults reaches all
        cluster.restart()
        assert await cluster.update("last") is None
        cluster.check()
        assert {(x.weights.state, x.weights.version) for x in cluster.replicas} == {(State.FRESH, "last")}

    run(story())
