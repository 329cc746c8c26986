"""Check that a container sees the devices that it was given (nvidia.com/gpu). Runs in its own process: device_check.

Rules: the check uses NVIDIA's management library, which creates no CUDA context. It reads each device's memory: a
device does not answer if it has fallen off the bus, hangs, or may no longer be opened (the container's cgroup was
rewritten). A GPU that is divided (MIG) counts by its parts. If NVIDIA_VISIBLE_DEVICES names the devices, one that is
named twice counts once. If the image lacks the library, the check only tries whether any device file in /dev can be
opened.
"""

import os
import re
from collections.abc import Mapping
from typing import Any, Optional

LIBRARY = "libnvidia-ml.so.1"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
MAX_NAMED = 3
_SUCCESS, _NO_PERMISSION = 0, 4


def visible_devices(wanted: int, env: Mapping[str, str]) -> int:
    """The number of different devices. wanted: the number that the manifest requests."""
    named = {word.strip() for word in env.get(VISIBLE, "").split(",") if word.strip()}
    known = bool(named) and all(word.startswith(("GPU-", "MIG-")) for word in named)
    return min(wanted, len(named)) if known else wanted


def missing_devices_reason(wanted: int) -> str:
    """Why fewer than `wanted` devices answer; "" if enough do."""
    library = _load()
    return by_files("/dev") if library is None else by_library(library, wanted)


def by_library(nvml: Any, wanted: int) -> str:
    from ctypes import byref, c_uint, c_void_p

    code = nvml.nvmlInit_v2()
    if code != _SUCCESS:
        return f"0 of {wanted} devices answer: {_error_text(nvml, code)}"
    count, answer, silent = c_uint(), 0, []
    code = nvml.nvmlDeviceGetCount_v2(byref(count))
    if code != _SUCCESS:
        return f"0 of {wanted} devices answer: {_error_text(nvml, code)}"
    for index in range(count.value):
        handle = c_void_p()
        code = nvml.nvmlDeviceGetHandleByIndex_v2(c_uint(index), byref(handle))
        if code == _NO_PERMISSION:
            continue  # a device of the node that this container was not given
        parts = _parts(nvml, handle) if code == _SUCCESS else None
        if code == _SUCCESS and parts is None:
            code = _ask(nvml, handle)
        answer += (parts or 0) if parts is not None else int(code == _SUCCESS)
        silent += [f"GPU {index}: {_error_text(nvml, code)}"] if code != _SUCCESS else []
    if answer >= wanted:
        return ""
    name = "; ".join(silent[:MAX_NAMED])
    return f"{answer} of {wanted} devices answer" + (f": {name}" if name else "")


def by_files(folder: str) -> str:
    """Why no device can be opened; "" if one can."""
    troubles = []
    for name in sorted(name for name in os.listdir(folder) if re.fullmatch(r"nvidia[0-9]+", name)):
        path = os.path.join(folder, name)
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
        except OSError as error:
            troubles.append(f"{path}: {error.strerror}")
        else:
            return ""
    message = "; ".join(troubles[:MAX_NAMED]) or f"there is neither {folder}/nvidia0 nor {LIBRARY}"
    return f"no device can be opened: {message}"


def _ask(nvml: Any, handle: Any) -> int:
    """Query a value that only the device itself can return."""
    from ctypes import byref, c_ulonglong

    total_free_used = (c_ulonglong * 3)()
    code: int = nvml.nvmlDeviceGetMemoryInfo(handle, byref(total_free_used))
    return code


def _parts(nvml: Any, handle: Any) -> Optional[int]:
    """The number of MIG parts that the container has; None if the GPU is not divided."""
    from ctypes import byref, c_uint, c_void_p

    mode = getattr(nvml, "nvmlDeviceGetMigMode", None)  # older libraries lack it
    current, pending, most = c_uint(), c_uint(), c_uint()
    if mode is None or mode(handle, byref(current), byref(pending)) != _SUCCESS or current.value != 1:
        return None
    nvml.nvmlDeviceGetMaxMigDeviceCount(handle, byref(most))
    seen = 0
    for part in range(most.value):
        code: int = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, c_uint(part), byref(c_void_p()))
        seen += code == _SUCCESS
    return seen


def _error_text(nvml: Any, code: int) -> str:
    text = nvml.nvmlErrorString(code)
    return f"{text.decode(errors='replace')} (NVML {code})" if text else f"NVML {code}"


def _load() -> Any:
    try:
        import ctypes  # some minimal builds of Python lack it

        library = ctypes.CDLL(LIBRARY)
    except (ImportError, OSError):
        return None
    library.nvmlErrorString.restype = ctypes.c_char_p
    return library
