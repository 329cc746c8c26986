"""What copies between a GPU's tensors and the memory for snapshots need to be fast.

Rules: the driver copies to and from registered ("pinned") memory several times as fast as to and from other memory, so
the used part of a slot is registered once in each process. A registration that fails costs only time. The block sums of
a GPU's tensor are computed on the GPU, which reads its memory far faster than a CPU reads the copy. They are the sums
of the tensor itself, so a copy that differs from it is found as damaged. All streams are synchronized first: otherwise
a stream that still writes the tensor could change it between the copy and the sums.
"""

import contextlib
import ctypes
import mmap
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable

from understudy_protocol.snapshot_files import PAGE_BYTES
from understudy_protocol.snapshot_slots import BLOCK_BYTES

if TYPE_CHECKING:
    import torch

_SUCCESS = 0


def is_on_gpu(tensor: "torch.Tensor") -> bool:
    return bool(tensor.device.type == "cuda")  # also AMD's


def synchronize(tensors: "Sequence[torch.Tensor]") -> None:
    """Wait until no stream writes these tensors any more."""
    import torch

    for device in {tensor.device for tensor in tensors if is_on_gpu(tensor)}:
        torch.cuda.synchronize(device)


def has_sums(tensor: "torch.Tensor") -> bool:
    """Whether device_sums() can compute its block sums: its memory has the bytes of a copy, in their order."""
    if not is_on_gpu(tensor) or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        return False
    return bool(tensor.data_ptr() % 8 == 0 and tensor.storage_offset() * tensor.element_size() % 8 == 0)


def device_sums(tensor: "torch.Tensor") -> bytes:
    """The block sums (see Part) of a tensor for which has_sums() is true. Waits for the tensor's stream."""
    import torch

    length = tensor.numel() * tensor.element_size()
    if not length:
        return b""
    flat = tensor.view(-1).view(torch.uint8)
    words, of_block = length // 8, BLOCK_BYTES // 8
    sums, full = b"", words // of_block * of_block
    if words:
        whole = flat[: words * 8].view(torch.int64)
        added = torch.cat((whole[:full].view(-1, of_block).sum(1), whole[full:].sum().view(1))).tolist()
        sums = struct.pack(f"<{len(added)}q", *added)
    return sums + bytes(flat[words * 8 :].tolist())


class PinnedMemory:
    """The registered parts of a mapping of this process.

    complain: of a text for the log. driver: has cudaHostRegister and cudaHostUnregister. forget_error: see prepare().
    """

    def __init__(
        self, complain: Callable[[str], None], driver: Callable[[], Any], forget_error: Callable[[], None]
    ) -> None:
        self._complain, self._driver, self._forget_error = complain, driver, forget_error
        self._lengths: dict[int, int] = {}  # by offset
        self._is_off = False

    def prepare(self, memory: mmap.mmap, offset: int, length: int) -> None:
        """Register this part, unless it is. offset: of a page; the same for all calls about a part.

        If the driver rejects it, it reports this error once more after the next kernel, which may be one of the script.
        forget_error() runs that kernel.
        """
        registered = self._lengths.get(offset, 0)
        if self._is_off or length <= registered:
            return
        driver, address = self._driver(), ctypes.addressof(ctypes.c_char.from_buffer(memory, offset))
        if registered:
            driver.cudaHostUnregister(address)
        length = -(-length // PAGE_BYTES) * PAGE_BYTES
        code = int(driver.cudaHostRegister(address, length, 0))
        if code == _SUCCESS:
            self._lengths[offset] = length
            return
        self._is_off = True
        self._complain(
            f"the memory for snapshots cannot be registered with the GPU's driver (error {code}): snapshots are copied "
            "more slowly"
        )
        self._forget_error()


def of_torch() -> Any:
    """The driver, for PinnedMemory."""
    import torch

    return torch.cuda.cudart()


def run_a_kernel() -> None:
    """For PinnedMemory."""
    import torch

    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")
