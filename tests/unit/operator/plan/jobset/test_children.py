"""What a suspended Job gets when it is resumed. When it is, and all else about child Jobs, is in scenarios/."""

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
    assert merged(there, wanted) == {
        "metadata": {"labels": {"ours": "b"}, "annotations": {"c": "d"}},
        "spec": {
            "nodeSelector": {"pool": "a"},
            "tolerations": [{"key": "both"}, {"key": "theirs"}],
            "schedulingGates": [{"name": "theirs"}],
        },
    }
