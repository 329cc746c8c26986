"""When the fork server learns from a worker, and what it does with modules that prevent forks."""

from __future__ import annotations

from understudy_launcher import events as e
from understudy_launcher.learning import Learning, LearningState
from understudy_protocol.launcher import Learned


def watching(now: float = 0.0) -> Learning:
    learning = Learning(wanted=True)
    assert learning.spawned(is_forked=True, now=now)
    return learning


def test_the_modules_are_learned_at_the_first_step_of_the_first_worker() -> None:
    learning = watching()
    assert learning.stepped(1, 5.0) == []
    assert learning.stepped(0, 5.0) == [e.Learn(None)]
    assert learning.stepped(0, 6.0) == []


def test_without_a_step_they_are_learned_after_a_time() -> None:
    learning = watching(now=100.0)
    assert learning.deadline() == 160.0
    assert learning.on_time(159.9) == []
    assert learning.on_time(160.0) == [e.Learn(None)]


def test_a_worker_that_ends_before_that_is_not_learned_from_and_the_next_records() -> None:
    learning = watching()
    learning.ended(0)
    assert learning.stepped(0, 5.0) == []
    assert learning.spawned(is_forked=True, now=6.0)
    assert learning.stepped(0, 7.0) == [e.Learn(None)]


def test_workers_that_are_not_forked_or_whose_modules_are_set_record_nothing() -> None:
    assert not Learning(wanted=True).spawned(is_forked=False, now=0.0)
    assert not Learning(wanted=False).spawned(is_forked=True, now=0.0)


def test_the_modules_are_logged_and_reported_once_and_no_further_worker_records() -> None:
    learning = watching()
    learning.stepped(0, 5.0)
    effects = learning.on_learned(e.ModulesLearned(("transformers", "datasets"), 3.21))
    assert effects == [
        e.Log(
            "the fork server has learned 2 modules in 3.2 s, and the next workers need not import them: "
            "transformers,datasets"
        ),
        e.Report(Learned(("transformers", "datasets"))),
    ]
    assert not learning.spawned(is_forked=True, now=9.0)
    assert learning.state is LearningState.LEARNED


def test_a_module_that_is_refused_is_named_and_left_out() -> None:
    learning = watching()
    learning.stepped(0, 5.0)
    effects = learning.on_refused(e.ModuleRefused("bad", "its import starts a thread (bg)", ("a",)), 6.0)
    assert effects == [
        e.Log("the fork server does not import bad: its import starts a thread (bg)"),
        e.Learn(None, ("bad",)),
    ]


def test_after_five_refused_modules_only_those_before_the_fifth_are_learned() -> None:
    learning = watching()
    learning.stepped(0, 5.0)
    for number in range(4):
        assert learning.on_refused(e.ModuleRefused(f"m{number}", "it reads RANK", ("a",)), 6.0)[1:] == [
            e.Learn(None, tuple(f"m{other}" for other in range(number + 1)))
        ]
    effects = learning.on_refused(e.ModuleRefused("m4", "it reads RANK", ("a", "b")), 6.0)
    assert effects[1:] == [e.Learn(("a", "b"), ("m0", "m1", "m2", "m3", "m4"))]


def test_an_import_that_takes_too_long_or_ends_its_process_ends_the_learning() -> None:
    learning = watching()
    learning.stepped(0, 5.0)
    assert learning.deadline() == 185.0
    late = learning.on_time(185.0)
    assert late[0] == e.EndLearning()
    assert learning.state is LearningState.OFF
    assert learning.on_ended() == []
    learning = watching()
    learning.stepped(0, 5.0)
    assert len(learning.on_ended()) == 1
    assert not learning.spawned(is_forked=True, now=9.0)


def test_a_spare_learns_what_another_pod_has_learned_once_its_zygote_is_ready() -> None:
    spare = Learning(wanted=True)
    assert spare.preload(("transformers",), is_ready=False, now=1.0) == []
    assert spare.on_ready(2.0) == [e.Learn(("transformers",))]
    ready = Learning(wanted=True)
    assert ready.preload(("transformers",), is_ready=True, now=1.0) == [e.Learn(("transformers",))]
    assert ready.preload(("transformers",), is_ready=True, now=2.0) == []


def test_a_second_zygote_that_ends_before_its_first_fork_takes_what_was_learned_with_it() -> None:
    learning = watching()
    learning.stepped(0, 5.0)
    learning.on_learned(e.ModulesLearned(("a",), 1.0))
    assert learning.on_second_lost(e.SecondZygoteLost("it has ended")) == [
        e.Log(
            "the fork server with the learned modules has ended before it forked a worker (it has ended): the fork "
            "server without these modules forks the next workers"
        )
    ]
    assert (learning.state, learning.modules) == (LearningState.OFF, ())


def test_a_lost_zygote_takes_the_record_with_it_but_not_what_was_learned() -> None:
    learning = watching()
    learning.lost_zygote()
    assert learning.stepped(0, 5.0) == []
    learning = watching()
    learning.stepped(0, 5.0)
    learning.on_learned(e.ModulesLearned(("a",), 1.0))
    learning.lost_zygote()
    assert learning.modules == ("a",)
