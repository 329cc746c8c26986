"""Which Xid codes a text names, and which of them are fatal."""

import pytest

from understudy_operator.plan.faults.xids import FATAL, named


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("Xid 79 on GPU 3", {79}),
        ("NvidiaXID79Error: detected XID-79 on the instance", {79}),
        ("ErrorCode:13 PCI:0001:00:00; ErrorCode:119 PCI:0002:00:00", {13, 119}),
        ("NVRM: Xid (PCI:0000:1b:00): 48, pid=1234, DBE", {48}),
        ("ErrorCode:DCGM_FR_FAULTY_MEMORY GPU:0", set()),
        ("a port with the number 79", set()),
        ("", set()),
    ],
)
def test_the_codes_that_a_text_names(text: str, codes: set[int]):
    assert named(text) == codes


@pytest.mark.parametrize(
    "code", [46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 147, 151, 155, 156, 158, 160]
)
def test_fatal(code: int):
    assert code in FATAL


@pytest.mark.parametrize("code", [13, 31, 43, 45, 63, 68, 94, 137, 154])
def test_not_fatal(code: int):
    assert code not in FATAL
