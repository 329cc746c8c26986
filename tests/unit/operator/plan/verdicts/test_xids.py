"""The Xid codes that a text names, and which of them are fatal."""

import time

import pytest

from understudy_operator.plan.verdicts.xids import FATAL, find_xids


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("Xid 79 on GPU 3", {79}),
        ("NvidiaXID79Error: detected XID-79 on the instance", {79}),
        ("ErrorCode:13 PCI:0001:00:00; ErrorCode:119 PCI:0002:00:00", {13, 119}),
        ("NVRM: Xid (PCI:0000:1b:00): 48, pid=1234, DBE", {48}),
        ("NVRM: Xid (PCI:0000:04:00): 145, RLW_REMAP Fatal XC0 i0 Link 00 (0x00000004 0x00000002)", {145}),
        ("NVRM: Xid (PCI:0000:04:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000001)", set()),
        ("Xid (PCI:0000:04:00): 146, TLW_RX/TLW_RX_PIPE0 Nonfatal XC0; Xid (PCI:0000:04:00): 48, DBE", {48}),
        ("ErrorCode:149.NETIR_LINK_EVT PCI:0000:04:00 Recommended Action=COMPONENT_RESET", {149}),
        ("nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", set()),
        ("ErrorCode:DCGM_FR_FAULTY_MEMORY GPU:0", set()),
        ("a port with the number 79", set()),
        ("", set()),
    ],
)
def test_the_codes_in_a_text_are_found(text: str, codes: set[int]):
    assert find_xids(text) == codes


@pytest.mark.attack(
    "A1", "writes text that is long to search into a condition of its node", before="1 MB took 80 s at each read"
)
@pytest.mark.parametrize("part", ["xid(", "xid", "xid    ", "xid:", "xid1,a", "xid1, ", "(", " ", "a"])
@pytest.mark.parametrize("beginning", ["", "xid", "xid(", "xid1,", "xid1,a"])
def test_searching_a_text_takes_cpu_time_in_proportion_to_its_length(beginning: str, part: str):
    text = beginning + part * (200_000 // len(part))
    began = time.thread_time()
    find_xids(text)
    assert time.thread_time() - began < 1.0


#: The immediate actions of NVIDIA's catalog for the codes in use, without RESTART_APP and IGNORE.
CATALOGUE = {
    "RESET_GPU": [46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158],
    "WORKFLOW_XID_48": [48],
    "WORKFLOW_NVLINK_ERR": [74],
    "WORKFLOW_NVLINK5_ERR": [144, 145, 146, 147, 148, 149, 150],
    "RESTART_BM": [79],
    "RESTART_VM": [151],
    "CHECK_MECHANICALS": [54],
}


def test_codes_for_which_the_catalog_demands_a_reset_a_restart_or_an_inspection_are_fatal():
    assert sorted(FATAL) == sorted(code for codes in CATALOGUE.values() for code in codes)


@pytest.mark.parametrize(
    "code",
    [
        *(13, 31, 43, 45, 63, 68, 94, 137, 160, 161),  # RESTART_APP and IGNORE, and a cleanup after another code
        *(78, 142, 154, 159),  # vGPU, a video encoder, a consequence of another code, memory that the driver checks
        *range(162, 173),  # without an action in the catalog
    ],
)
def test_other_codes_are_not_fatal(code: int):
    assert code not in FATAL
