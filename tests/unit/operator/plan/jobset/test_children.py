"""What a suspended Job gets when it is resumed. When it is, and all else about child Jobs, is in scenarios/."""

from typing import Any

from understudy_operator.plan.jobset.children import merged


def test_what_others_have_written_stays_unless_ours_says_otherwise():
    there = {
        "metadata": {"labels": {"kept-by-merge": "a"}},
        "spec": {"tolerations": [{"key": "theirs"}, {"key": "both"}], "schedulingGates": [{"name": "theirs"}]},
    }
    wanted = {
        "metadata": {"labels": {"ours": "b"}, "annotations": {"c": "d"}},
        "spec": {"tolerations": [{"key": "both"}], "nodeSelector": {"pool": "a"}, "containers": []},
    }
    assert merged(there, wanted, {}) == {
        "metadata": {"labels": {"ours": "b"}, "annotations": {"c": "d"}},
        "spec": {
            "nodeSelector": {"pool": "a"},
            "tolerations": [{"key": "both"}, {"key": "theirs"}],
            "schedulingGates": [{"name": "theirs"}],
        },
    }


def test_what_this_operator_has_written_and_does_not_want_any_more_goes():
    there = {
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
    assert merged(there, wanted, written) == {
        "metadata": {"labels": {"ours": None, "new": "c"}, "annotations": {}},
        "spec": {
            "nodeSelector": {"pool": None, "zone": "b"},
            "tolerations": [{"key": "theirs"}],
            "schedulingGates": [],
        },
    }
