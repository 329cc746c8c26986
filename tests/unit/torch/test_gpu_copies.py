"""The registration of memory with a GPU's driver, with a stand-in for the driver."""

from __future__ import annotations

import mmap

from understudy_torch.gpu_copies import PinnedMemory

PAGE = 4096


class Driver:
    """NVIDIA's calls. code: the answer to a registration."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.calls: list[tuple[str, int]] = []  # with the registered bytes

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802
        assert address % PAGE == flags == 0
        self.calls.append(("register", size))
        return self.code

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        self.calls.append(("unregister", 0))
        return 0


def test_each_part_is_registered_once_and_again_when_it_has_grown() -> None:
    driver, texts = Driver(), list[str]()
    pinned, memory = PinnedMemory(texts.append, lambda: driver, lambda: texts.append("kernel")), mmap.mmap(-1, 8 * PAGE)
    # given two slots
    for offset in (0, 4 * PAGE):
        pinned.prepare(memory, offset, PAGE + 1)
    assert driver.calls == [("register", 2 * PAGE), ("register", 2 * PAGE)]
    # when a save fits what is registered, then it is not registered again
    pinned.prepare(memory, 0, 2 * PAGE)
    assert len(driver.calls) == 2
    # and when the state has grown, it is
    pinned.prepare(memory, 0, 2 * PAGE + 1)
    assert driver.calls[2:] == [("unregister", 0), ("register", 3 * PAGE)]
    assert texts == []


def test_a_driver_that_rejects_the_memory_is_asked_once_and_its_error_is_forgotten() -> None:
    driver, texts = Driver(code=801), list[str]()
    pinned, memory = PinnedMemory(texts.append, lambda: driver, lambda: texts.append("kernel")), mmap.mmap(-1, 8 * PAGE)
    for offset in (0, 4 * PAGE, 0):
        pinned.prepare(memory, offset, PAGE)
    assert driver.calls == [("register", PAGE)]
    assert texts == [
        "the memory for snapshots cannot be registered with the GPU's driver (error 801): snapshots are copied more "
        "slowly",
        "kernel",
    ]
