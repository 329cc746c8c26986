"""The patch that a suspended Job gets when it is resumed. All else about child Jobs is in scenarios/."""

from typing import Any

from understudy_operator.plan.jobset.children import merge_template


def test_fields_of_other_writers_stay_unless_the_operator_sets_them():
    present = {
        "metadata": {"labels": {"kept-by-merge": "a"}},
        "spec": {"tolerations": [{"key": "theirs"}, {"key": "both"}], "schedulingGates": [{"name": "theirs"}]},
    }
    wanted = {
        "metadata": {"labels": {"ours": "b"}, "annotations": {"c": "d"}},
        "spec": {"tolerations": [{"key": "both"}], "nodeSelector": {"pool": "a"}, "containers": []},
    }
    assert merge_template(present, wanted, {}) == {
        "metadata": {"labels": {"ours": "b"}, "annotations": {"c": "d"}},
        "spec": {
            "nodeSelector": {"pool": "a"},
            "tolerations": [{"key": "both"}, {"key": "theirs"}],
            "schedulingGates": [{"name": "theirs"}],
        },
    }


def test_a_field_that_the_operator_has_written_and_no_longer_wants_is_removed():
    present = {
        "metadata": {"labels": {"ours": "a", "theirs": "b"}},
        "spec": {
            "nodeSelector": {"pool": "a", "theirs": "b"},
            "tolerations": [{"key": "ours"}, {"key": "theirs"}],
            "schedulingGates": [{"name": "ours"}],
        },
    }
    wanted: dict[str, Any] = {"metadata": {"labels": {"new": "c"}}, "spec": {"nodeSelector": {"zone": "b"}}}
    written: dict[str, Any] = {
        "labels": ["ours", "gone-already"],
        "nodeSelector": ["pool"],
        "tolerations": [{"key": "ours"}],
        "schedulingGates": [{"name": "ours"}],
    }
    assert merge_template(present, wanted, written) == {
        "metadata": {"labels": {"ours": None, "new": "c"}, "annotations": {}},
        "spec": {
            "nodeSelector": {"pool": None, "zone": "b"},
            "tolerations": [{"key": "theirs"}],
            "schedulingGates": [],
        },
    }
