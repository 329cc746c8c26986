"""UNDERSTUDY_NAMESPACES, as the chart sets it."""

import pytest

from understudy_operator.settings import read_namespaces


@pytest.mark.parametrize(
    ("env", "namespaces"),
    [
        ({}, ()),
        ({"UNDERSTUDY_NAMESPACES": ""}, ()),
        ({"UNDERSTUDY_NAMESPACES": "red"}, ("red",)),
        ({"UNDERSTUDY_NAMESPACES": "red,team-7,red"}, ("red", "team-7")),
    ],
)
def test_duplicate_names_are_read_once(env: dict[str, str], namespaces: tuple[str, ...]) -> None:
    assert read_namespaces(env) == namespaces


@pytest.mark.parametrize("wrong", ["Red", "red,", "red blue", "red/blue", "..", "a" * 64, "red,*"])
def test_an_invalid_name_is_rejected_because_it_would_be_part_of_a_path(wrong: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a namespace: correct or remove it"):
        read_namespaces({"UNDERSTUDY_NAMESPACES": wrong})
