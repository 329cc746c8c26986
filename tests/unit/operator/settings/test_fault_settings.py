"""The chart's fault settings: read at the start; the operator exits with an error message if they are invalid."""

import logging
from pathlib import Path

import pytest

from understudy_operator import __main__ as program
from understudy_operator.plan.verdicts.built_in import BUILT_IN
from understudy_operator.settings import FaultSettings, read_fault_settings

WRONG = '[{"name": "cordon", "enabled": false}, {"name": "x", "signal": "Label", "keys": ["x"], "class": "hardware"}]'


def test_the_default_is_the_built_in_table_and_memory_in_the_process() -> None:
    assert read_fault_settings({}) == FaultSettings(BUILT_IN, None)


def test_the_memorys_configmap_has_a_namespace_and_a_name() -> None:
    assert read_fault_settings({"UNDERSTUDY_NODE_FAULTS": "a/b"}).memory == ("a", "b")
    with pytest.raises(ValueError, match=r"UNDERSTUDY_NODE_FAULTS is .b.: set it to a ConfigMap"):
        read_fault_settings({"UNDERSTUDY_NODE_FAULTS": "b"})


def test_an_invalid_row_ends_the_operator_at_its_start_with_its_number_field_and_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "master").write_bytes(b"x" * 32)
    monkeypatch.setenv("UNDERSTUDY_MASTER_SECRET", str(tmp_path / "master"))
    monkeypatch.setenv("UNDERSTUDY_SIDECAR_IMAGE", "example.com/sidecar:1")
    monkeypatch.delenv("UNDERSTUDY_LEASE", raising=False)
    monkeypatch.setenv("UNDERSTUDY_FAULT_SOURCES", WRONG)
    with caplog.at_level(logging.ERROR):
        assert program.main() == 2
    lines = "faults.sources[1].class: is 'hardware'; set it to Hardware, Maintenance or Preemption"
    assert lines in caplog.text
