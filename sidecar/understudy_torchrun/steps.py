"""The steps of torchrun's workers: through files in a folder for each round, because these workers inherit no files.

One folder for each round, so that no older step is read. If it cannot be created, steps are not reported, and the log
has the reason.
"""

from typing import Callable, Optional

from understudy_launcher.events import CollectivesRead, StepsRead
from understudy_launcher.step_page import StepFolder


class TorchrunSteps:
    """`watch` and `unwatch` get the bell to select for reading. ranks: the number of workers of the pod."""

    def __init__(
        self, ranks: int, watch: Callable[[int], None], unwatch: Callable[[int], None], log: Callable[[str], None]
    ) -> None:
        self._ranks, self._watch, self._unwatch, self._log = ranks, watch, unwatch, log
        self._folder: Optional[StepFolder] = None

    def begin(self) -> str:
        """The folder's path; "" if there is none."""
        self.end()
        try:
            self._folder = StepFolder(self._ranks)
        except OSError as error:
            self._log(f"cannot create the files for the workers' steps ({error}): step() has no effect in this round")
            return ""
        self._watch(self._folder.bell)
        return self._folder.path

    def has_news(self) -> list[StepsRead]:
        if self._folder is None:
            return []
        self._folder.has_news()
        return self.read()

    def read(self) -> list[StepsRead]:
        return [] if self._folder is None else self._folder.steps_read()

    def read_collectives(self) -> list[CollectivesRead]:
        return [] if self._folder is None else self._folder.collectives_read()

    def dump_stacks(self, local_rank: int, group: Optional[int]) -> str:
        """Why the stacks cannot be written, or ""."""
        if self._folder is None or group is None:
            return "it has ended"
        return self._folder.pages[local_rank].dump_stacks(group)

    def write_collectives(self, local_rank: int, group: Optional[int]) -> None:
        """Make the worker write its newest collectives, if it can."""
        if self._folder is not None and group is not None:
            self._folder.pages[local_rank].write_collectives(group)

    def end(self) -> None:
        folder, self._folder = self._folder, None  # the session's thread and the program's end may both call this
        if folder is not None:
            self._unwatch(folder.bell)
            folder.close()
