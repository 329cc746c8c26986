"""The sidecar of an injected pod without a launcher: it is no member, and writes `verdict.json` for
`understudy_torch.exit_on_fault()`.

It gets the node health verdict from a pod annotation, which the operator writes (verdicts.py), and from a file on the
node, if one is configured. It ends on SIGTERM: the kubelet sends that once the pod's own containers have ended.
"""

import asyncio
import logging
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from understudy_protocol import pod
from understudy_protocol.membership import NodeVerdict
from understudy_sidecar import health, records
from understudy_sidecar.records import SHIPPED_FILES
from understudy_sidecar.settings import pod_folder, read_port
from understudy_sidecar.verdicts import INTERVAL_S, AnnotationFile, Verdicts, watch_node_file

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AloneSettings:
    folder: Path
    state: Path  # of files that only the sidecar may read and write
    verdict_file: Path  # the annotation's text
    shipped: Path
    look_every_s: float = INTERVAL_S
    nologin: str = ""
    listen: str | None = None
    health_port: int = pod.HEALTH_PORT


def read_alone(env: Mapping[str, str]) -> AloneSettings:
    """Raises SettingsError."""
    return AloneSettings(
        folder=Path(env.get(pod.ENV_SHARED_FOLDER) or pod.SHARED_FOLDER),
        state=Path(env.get(pod.ENV_STATE_FOLDER) or pod.STATE_FOLDER),
        verdict_file=pod_folder(env) / pod.VERDICT_ANNOTATION_FILE,
        shipped=Path(env.get(pod.ENV_SHIPPED_FOLDER) or SHIPPED_FILES),
        nologin=env.get(pod.ENV_NOLOGIN, ""),
        listen=env.get(pod.ENV_LISTEN) or None,
        health_port=pod.health_port(read_port(env)),
    )


class SidecarAlone:
    def __init__(self, settings: AloneSettings) -> None:
        self._settings = settings
        self._verdicts = Verdicts(settings.folder, settings.state, settings.nologin)
        self._end_event = asyncio.Event()

    async def run(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._end_event.set)
        records.install_launcher(self._settings.folder, self._settings.shipped)
        self._verdicts.on_node_file(False)
        annotation = AnnotationFile(
            self._settings.verdict_file, self._on_annotated_verdict, self._settings.look_every_s
        )
        annotation.start()
        node_file = watch_node_file(self._settings.nologin, self._verdicts.on_node_file)
        probes = await health.listen(self._settings.health_port, self._settings.listen)
        log.info("the pod has no launcher, so this sidecar joins no job; it keeps only the node health verdict")
        await self._end_event.wait()
        annotation.stop()
        if node_file is not None:
            node_file.stop()
        probes.close()

    def _on_annotated_verdict(self, verdict: NodeVerdict) -> None:
        log.info("node health verdict: %s", verdict)
        self._verdicts.on_verdict(verdict)
