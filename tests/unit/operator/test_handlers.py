"""What kopf does for the operator, which is no more than its start and its end; and what the operator asks for."""

import resource

import kopf

from understudy_operator import handlers
from understudy_operator.observe.store import Kind
from understudy_operator.resync import PATHS


async def test_kopf_watches_nothing():
    # given the operator's handlers
    assert handlers.start is not None

    # then none of them is of an object
    registry = kopf.get_default_registry()
    for others in (registry._watching, registry._changing, registry._spawning, registry._indexing):
        assert list(others.get_all_handlers()) == []


def test_secrets_are_neither_listed_nor_watched():
    assert not any("secrets" in path for path, _ in PATHS.values())


def test_of_pods_and_whatever_else_others_have_too_only_our_own_are_asked_for():
    # given our lists and watches, which go over all namespaces
    assert PATHS.keys() == set(Kind)

    # then each asks the API server for those that have our label, but for nodes and our own kinds
    for kind, (path, selector) in PATHS.items():
        own = kind is Kind.NODE or path.startswith("/apis/understudy.dev/")
        assert selector == ("" if own else "understudy.dev/job-uid")


def test_the_operator_may_open_all_files_that_its_container_may_have():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        handlers.open_all_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
