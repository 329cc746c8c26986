"""Which shard owns a namespace: all replicas of all versions have to agree, so the numbers stand here."""

from collections import Counter

import pytest

from understudy_operator.plan.leadership.shard import Shard, shard_of


@pytest.mark.parametrize(
    ("namespace", "of_2", "of_3", "of_5", "of_8"),
    [
        ("default", 1, 1, 4, 5),
        ("team-a", 0, 0, 1, 4),
        ("team-b", 0, 2, 2, 2),
        ("team-c", 1, 2, 4, 1),
        ("research", 0, 2, 1, 2),
        ("kube-system", 1, 1, 4, 1),
    ],
)
def test_the_owner_of_a_namespace_never_changes(namespace: str, of_2: int, of_3: int, of_5: int, of_8: int):
    assert [shard_of(namespace, count) for count in (1, 2, 3, 5, 8)] == [0, of_2, of_3, of_5, of_8]


@pytest.mark.parametrize("count", range(1, 9))
def test_each_namespace_has_exactly_one_owner(count: int):
    shards = [Shard(index, count) for index in range(count)]
    for number in range(1000):
        assert sum(shard.owns(f"team-{number}") for shard in shards) == 1


@pytest.mark.parametrize(
    ("count", "smallest", "largest"),
    [(2, 493, 507), (3, 325, 343), (5, 168, 212), (8, 117, 131)],
)
def test_a_thousand_namespaces_are_distributed_evenly(count: int, smallest: int, largest: int):
    sizes = Counter(shard_of(f"team-{number}", count) for number in range(1000))
    assert (len(sizes), min(sizes.values()), max(sizes.values())) == (count, smallest, largest)


def test_a_listed_namespace_belongs_to_the_chosen_shard_and_all_others_to_that_of_their_hash():
    # given two shards; by its hash, team-a belongs to shard 0 and team-c to shard 1
    shards = [Shard(index, 2, "team-a=1,unknown=0") for index in range(2)]
    owners = {name: [shard.owns(name) for shard in shards] for name in ("team-a", "team-b", "team-c")}
    assert owners == {"team-a": [False, True], "team-b": [True, False], "team-c": [False, True]}


def test_a_shard_watches_only_its_own_namespaces_of_a_list():
    shards = [Shard(index, 2, "team-c=0") for index in range(2)]
    listed = ("team-a", "team-b", "team-c", "default")
    assert [shard.watched(listed) for shard in shards] == [("team-a", "team-b", "team-c"), ("default",)]
    # without a list: all
    assert [shard.watched(()) for shard in shards] == [(), ()]
    # an empty list would mean all namespaces
    assert [shard.watched(("team-b", "team-a")) for shard in shards] == [("team-b", "team-a"), ("team-b",)]
    assert Shard().watched(listed) == listed


def test_another_list_is_another_layout():
    shard = Shard(0, 2, "team-a=1")
    # the other shard of the same layout
    assert not shard.is_of_other_layout("operator", "operator-1-of-2", "team-a=1")
    # and shards of others
    assert shard.is_of_other_layout("operator", "operator-1-of-2", "team-a=0")
    assert shard.is_of_other_layout("operator", "operator-1-of-2", "")
    assert shard.is_of_other_layout("operator", "operator", "")
    assert Shard(0, 2).is_of_other_layout("operator", "operator-1-of-2", "team-a=1")


def test_objects_without_a_namespace_belong_to_all_shards():
    assert all(Shard(index, 3).owns("") for index in range(3))


def test_a_single_shard_keeps_the_name_of_the_lease_and_all_others_have_a_name_of_their_own():
    assert Shard().lease_name("understudy-operator") == "understudy-operator"
    names = [Shard(index, 3).lease_name("understudy-operator") for index in range(3)]
    assert names == ["understudy-operator-0-of-3", "understudy-operator-1-of-3", "understudy-operator-2-of-3"]


@pytest.mark.parametrize(
    ("name", "of_1", "of_2", "of_3"),
    [
        # the Leases of the installation
        ("operator", False, True, True),
        ("operator-0-of-2", True, False, True),
        ("operator-1-of-2", True, False, True),
        ("operator-2-of-3", True, True, False),
        # and other programs' Leases
        ("operator-0", False, False, False),
        ("another-operator", False, False, False),
        ("operator-0-of-2-x", False, False, False),
        ("operatorx", False, False, False),
    ],
)
def test_a_shard_recognizes_the_leases_of_other_layouts_by_their_names(name: str, of_1: bool, of_2: bool, of_3: bool):
    found = [Shard(0, count).is_of_other_layout("operator", name, "") for count in (1, 2, 3)]
    assert found == [of_1, of_2, of_3]
