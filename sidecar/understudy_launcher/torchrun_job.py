"""The launcher takes the place of the torchrun whose workers it runs: its folder, its limits, its log folder."""

import os
from typing import Callable

from understudy_launcher import process_settings
from understudy_launcher.torchrun_call import Output
from understudy_protocol.torchrun import RunWorkers


def take_over_process(call: RunWorkers, log: Callable[[str], None]) -> str:
    """Return why that is impossible, or ""."""
    try:
        os.chdir(call.folder)
    except OSError as error:
        return f"the launcher cannot enter torchrun's working directory: {error}"
    for error_text in process_settings.adopt(call.process):
        log(f"cannot give the workers a setting of torchrun's process: {error_text}")
    return ""


def make_folders(output: Output) -> None:
    """Raises OSError."""
    paths = (output.stdout.path, output.stderr.path, output.error_file)
    for folder in {os.path.dirname(path) for path in paths if path not in ("", os.devnull)}:
        os.makedirs(folder, exist_ok=True)
