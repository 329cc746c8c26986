"""kopf only starts and stops the operator; and the objects that the operator lists and watches."""

import resource

import kopf

from understudy_operator import handlers
from understudy_operator.observe.resync import PATHS
from understudy_operator.observe.store import Kind


async def test_kopf_watches_nothing():
    # given the operator's handlers
    assert handlers.start is not None

    # then none of them handles an object
    registry = kopf.get_default_registry()
    for others in (registry._watching, registry._changing, registry._spawning, registry._indexing):
        assert list(others.get_all_handlers()) == []


def test_secrets_are_neither_listed_nor_watched():
    assert not any("secrets" in path for path, _ in PATHS.values())


def test_only_our_own_objects_of_shared_kinds_are_listed_and_watched():
    # given our lists and watches over all namespaces
    assert PATHS.keys() == set(Kind)

    # then each requests only objects with our label, except nodes and our own kinds
    for kind, (path, selector) in PATHS.items():
        own = kind is Kind.NODE or path.startswith("/apis/understudy.dev/")
        assert selector == ("" if own else "understudy.dev/job-uid")


def test_the_operator_raises_its_limit_of_open_files_to_the_hard_limit():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        handlers.open_all_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
