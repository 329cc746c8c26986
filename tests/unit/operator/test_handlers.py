"""What kopf is asked for: raw events, and nothing that it would keep in objects, or copy them for."""

import kopf

from understudy_operator import handlers
from understudy_operator.kopf_storage import NoDiffs, NoProgress


async def test_every_handler_is_of_raw_events_and_nothing_is_kept_for_others():
    # given the operator's handlers
    registry = kopf.get_default_registry()

    # then all that are of objects are of raw events
    assert handlers.job_event is not None
    assert registry._watching.get_all_handlers()
    for others in (registry._changing, registry._spawning, registry._indexing):
        assert list(others.get_all_handlers()) == []

    # and no storage finds a difference, or copies what it is shown
    essence = kopf.BodyEssence({"spec": {}})
    assert NoProgress().clear(essence=essence) is essence
    assert NoDiffs().build(body=kopf.Body({"spec": {"replicas": 1}})) == {}
    assert NoDiffs().fetch(body=None) is None
    assert NoProgress().fetch(key="x", body=None) is None
