"""A gateway's stored state for the gateway after it, and when that state counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy_rollout import WeightsState
from understudy_rollout.gateway.__main__ import options
from understudy_rollout.gateway.listener import NOBODY
from understudy_rollout.gateway.weights_file import WeightsFile, open_weights_file
from understudy_rollout.weights import (
    Abandon,
    Begin,
    Commit,
    Event,
    EventRejected,
    Group,
    JoinGroup,
    UpdateCall,
    Weights,
    WeightsLost,
)


@pytest.mark.parametrize("text", ["", "{", '{"format": 1}', '{"format": 2, "server": "x", "weights": {}}', "[]"])
def test_a_file_that_cannot_be_read_is_not_trusted(tmp_path: Path, text: str) -> None:
    file = tmp_path / "weights.json"
    file.write_text(text)
    weights = open_weights_file(file, "this server", "v0").weights
    assert weights.state is WeightsState.UNCERTAIN
    assert "cannot read its state file" in weights.reason


def test_a_file_that_cannot_be_read_is_not_quoted(tmp_path: Path) -> None:
    file = tmp_path / "weights.json"
    file.write_text('{"format": "0123456789"}')
    reason = open_weights_file(file, "this server", "v0").weights.reason
    assert str(file) in reason
    assert "0123456789" not in reason


@pytest.mark.parametrize("listener", ["another one", NOBODY, None])
def test_only_the_same_process_is_trusted(tmp_path: Path, listener: str | None) -> None:
    file = tmp_path / "weights.json"
    assert open_weights_file(file, "boot:1", "v0").weights.state is WeightsState.FRESH
    assert open_weights_file(file, "boot:1", "v0").weights.state is WeightsState.FRESH
    weights = open_weights_file(file, listener, "v0").weights
    assert (weights.state, weights.version) == (WeightsState.UNCERTAIN, "")
    assert open_weights_file(file, "boot:1", "v0").weights.state is WeightsState.UNCERTAIN, "and that is stored too"


def test_a_server_that_comes_up_after_its_gateway_is_the_first_one(tmp_path: Path) -> None:
    file = tmp_path / "weights.json"
    keeper = open_weights_file(file, NOBODY, "v0")
    assert keeper.on_listener("boot:1") is None
    assert keeper.weights.state is WeightsState.FRESH
    # and from then on the server is known
    assert open_weights_file(file, "boot:2", "v0").weights.state is WeightsState.UNCERTAIN


def test_the_check_is_ignored_if_it_does_not_see_an_updated_server_listen(tmp_path: Path) -> None:
    # given a machine whose kernel does not show listeners, and a complete update
    file = tmp_path / "weights.json"
    keeper = open_weights_file(file, NOBODY, "")
    keeper.handle(Begin("u", "v1"))
    keeper.handle(Commit("u"))
    assert keeper.weights.state is WeightsState.FRESH
    # then the next gateway does not conclude that no process has listened since
    assert open_weights_file(file, NOBODY, "").weights.state is WeightsState.UNCERTAIN


def test_a_first_version_without_a_file_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--engine", "http://127.0.0.1:1", "--token-file", "t", "--initial-version", "v0"]
    with pytest.raises(SystemExit):
        options(words)
    assert "--initial-version needs --state-file" in capsys.readouterr().err
    assert options([*words, "--state-file", "f"]).state_file == Path("f")


def test_a_first_version_that_no_header_can_carry_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--engine", "http://127.0.0.1:1", "--token-file", "t", "--state-file", "f", "--initial-version", "v\n0"]
    with pytest.raises(SystemExit):
        options(words)
    assert r"--initial-version: version: expected printable ASCII" in capsys.readouterr().err


EVENTS = st.one_of(
    st.builds(Begin, st.sampled_from("ab"), st.sampled_from("12"), st.sampled_from([(0, 0, 1), (0, 0, 2)])),
    st.builds(UpdateCall, st.sampled_from("ab")),
    st.builds(JoinGroup, st.sampled_from("ab"), st.just(Group("10.0.0.7", 29500, 9, "g"))),
    st.builds(Commit, st.sampled_from("ab")),
    st.builds(Abandon, st.sampled_from("ab"), st.booleans(), st.just("why")),
    st.builds(WeightsLost, st.just("gone")),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(EVENTS, max_size=8), st.lists(EVENTS, max_size=4))
def test_a_restored_state_behaves_like_one_that_was_never_stored(before: list[Event], after: list[Event]) -> None:
    weights = Weights.fresh("0")
    for event in before:
        handled(weights, event)
    again = Weights.of(weights.known())
    for event in after:
        assert handled(again, event) == handled(weights, event)
        assert again.known() == weights.known()


def handled(weights: Weights, event: Event) -> str:
    try:
        WeightsFile(weights).handle(event)
    except EventRejected as refused:
        return str(refused)
    return ""
