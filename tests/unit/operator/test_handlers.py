"""What kopf is asked for: raw events, and nothing that it would keep in objects, or copy them for."""

import kopf

from understudy_operator import handlers
from understudy_operator.clock import Backoffs
from understudy_operator.kopf_storage import NoDiffs, NoProgress
from understudy_operator.metrics.operator import OperatorMetrics
from understudy_operator.observe.store import Kind
from understudy_operator.resync import PATHS
from understudy_protocol import pod as names


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


def test_of_secrets_and_whatever_else_others_have_too_only_our_own_are_asked_for():
    # given kopf's watches and our own lists, which go over all namespaces
    settings = kopf.OperatorSettings()
    handlers.configure(settings, OperatorMetrics())
    watched = settings.watching.label_selectors

    # then each asks the API server for those that have our label, but for nodes and our own kinds
    for kind, (path, selector) in PATHS.items():
        ours = kind is Kind.NODE or path.startswith("/apis/understudy.dev/")
        assert selector == ("" if ours else names.LABEL_JOB_UID)
        if kind not in (Kind.POD, Kind.NODE):  # our own watches, by the same selectors
            assert watched.get(kind.value, "") == selector


def test_a_watch_that_kopf_tries_again_counts_as_failed_each_time():
    # given kopf, which takes a pause before it asks, and another one after each failure
    failures: list[None] = []
    pauses = iter(Backoffs(lambda: failures.append(None)))

    # when a watch opens at once, then one does after two failures
    next(pauses)
    assert len(failures) == 0
    next(pauses)
    next(pauses)

    # then those are counted
    assert len(failures) == 2
