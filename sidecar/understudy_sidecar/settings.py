"""Settings from the operator, in the environment and in the folder of the pod's own files. Read once, at the start."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from understudy_protocol import files, pod
from understudy_protocol.addresses import with_port
from understudy_protocol.launcher import TakeOver
from understudy_protocol.order import Order
from understudy_protocol.pod import JobFacts, JobShape, group_rank, read_place
from understudy_protocol.sessions import KEY_BYTES
from understudy_protocol.wire import from_plain
from understudy_sidecar.records import SHIPPED_FILES
from understudy_sidecar.server import Claimable, SidecarIdentity

#: The most bytes of one file of a Secret: the API server accepts no larger Secret.
SECRET_BYTES = 1 << 20
#: The port after it is for probes.
_MOST_PORT = 65535


class SettingsError(ValueError):
    """A variable or a file that the operator should have set is missing or broken. The text has its name."""


@dataclass(frozen=True)
class Settings:
    shape: JobShape
    key: bytes  # of the membership, 32 bytes
    operator_key: bytes  # public, 32 bytes
    coordinator_host: str  # the ClusterIP of the coordinator's Service: no DNS lookup; "": the job has no such Service
    coordinator_port: int
    pod_uid: str
    pod_name: str
    node: str
    ip: str
    index: int | None  # completion index; None for a spare
    folder: Path
    state: Path  # of files that only the sidecar may read and write
    grace_s: float
    listen: str | None = None  # the one address to listen on; None: all
    shipped: Path = SHIPPED_FILES
    verdict_file: Path = Path(pod.POD_FOLDER) / pod.VERDICT_ANNOTATION_FILE  # the annotation's text
    nologin: str = ""  # a file on the node whose existence makes the node faulty; "": none is watched
    take_over: TakeOver | None = None  # for the launcher of a pod that was a pool's spare
    claims: Claimable | None = None  # answers claims on such a pod
    port: int = pod.COORDINATOR_PORT  # to listen on
    variables: Mapping[str, str] = field(default_factory=dict)  # for the launcher

    @property
    def address(self) -> str:
        """The address that other members and the operator call."""
        return with_port(self.ip, self.port)


@dataclass(frozen=True)
class SpareSettings:
    """Settings of a pool's spare, which has no job yet."""

    pool_uid: str
    key: bytes  # the pool's, 32 bytes
    operator_key: bytes  # as in Settings
    pod_uid: str
    pod_name: str
    node: str
    ip: str
    folder: Path
    state: Path  # as in Settings
    grace_s: float
    listen: str | None = None
    shipped: Path = SHIPPED_FILES
    verdict_file: Path = Path(pod.POD_FOLDER) / pod.VERDICT_ANNOTATION_FILE  # the annotation's text
    port: int = pod.COORDINATOR_PORT

    @property
    def address(self) -> str:
        return with_port(self.ip, self.port)


def read_settings(env: Mapping[str, str]) -> Settings:
    """Raises SettingsError, which names the missing variable or file."""
    folder = pod_folder(env)
    job = _job(folder / pod.JOB_FILE)
    host, _, port = job.coordinator.rpartition(":")  # both "" if a single pod was to be the coordinator itself
    return Settings(
        shape=job.shape,
        key=_key(folder / pod.KEY_FILE, "the job's membership key"),
        operator_key=_key(folder / pod.OPERATOR_KEY_FILE, "the operator's public key"),
        coordinator_host=host,
        coordinator_port=int(port or 0),
        pod_uid=_own_field(folder / pod.POD_UID_FILE),
        pod_name=_own_field(folder / pod.POD_NAME_FILE),
        node=_need(env, pod.ENV_NODE),
        ip=_need(env, pod.ENV_POD_IP),
        index=_index(env, job),
        folder=Path(env.get(pod.ENV_SHARED_FOLDER, pod.SHARED_FOLDER)),
        state=Path(env.get(pod.ENV_STATE_FOLDER) or pod.STATE_FOLDER),
        grace_s=float(env.get(pod.ENV_GRACE, "30")),
        listen=env.get(pod.ENV_LISTEN) or None,
        shipped=Path(env.get(pod.ENV_SHIPPED_FOLDER) or SHIPPED_FILES),
        verdict_file=folder / pod.VERDICT_ANNOTATION_FILE,
        nologin=env.get(pod.ENV_NOLOGIN, ""),
        port=read_port(env),
        variables=job.variables,
    )


def read_spare(env: Mapping[str, str]) -> SpareSettings:
    """Raises SettingsError, which names the missing variable or file."""
    folder = pod_folder(env)
    return SpareSettings(
        pool_uid=_need(env, pod.ENV_POOL),
        key=_key(folder / pod.KEY_FILE, "the pool's key"),
        operator_key=_key(folder / pod.OPERATOR_KEY_FILE, "the operator's public key"),
        pod_uid=_own_field(folder / pod.POD_UID_FILE),
        pod_name=_own_field(folder / pod.POD_NAME_FILE),
        node=_need(env, pod.ENV_NODE),
        ip=_need(env, pod.ENV_POD_IP),
        folder=Path(env.get(pod.ENV_SHARED_FOLDER, pod.SHARED_FOLDER)),
        state=Path(env.get(pod.ENV_STATE_FOLDER) or pod.STATE_FOLDER),
        grace_s=float(env.get(pod.ENV_GRACE, "30")),
        listen=env.get(pod.ENV_LISTEN) or None,
        shipped=Path(env.get(pod.ENV_SHIPPED_FOLDER) or SHIPPED_FILES),
        verdict_file=folder / pod.VERDICT_ANNOTATION_FILE,
        port=read_port(env),
    )


def settings_of_claimed(spare: SpareSettings, order: Order, claims: Claimable) -> Settings:
    """Settings of the job's spare that a claimed pool spare becomes."""
    host, _, port = order.coordinator.rpartition(":")
    return Settings(
        shape=order.shape,
        key=bytes.fromhex(order.key),
        operator_key=spare.operator_key,
        coordinator_host=host,
        coordinator_port=int(port),
        pod_uid=spare.pod_uid,
        pod_name=spare.pod_name,
        node=spare.node,
        ip=spare.ip,
        index=None,
        folder=spare.folder,
        state=spare.state,
        grace_s=spare.grace_s,
        listen=spare.listen,
        shipped=spare.shipped,
        verdict_file=spare.verdict_file,
        take_over=order.take_over,
        claims=claims,
        port=spare.port,
    )


def sidecar_identity(settings: Settings | SpareSettings) -> SidecarIdentity:
    return SidecarIdentity(settings.pod_uid, settings.address, settings.operator_key)


def read_port(env: Mapping[str, str]) -> int:
    """The port to listen on. Raises SettingsError."""
    text = env.get(pod.ENV_PORT) or str(pod.COORDINATOR_PORT)
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < _MOST_PORT):
        raise SettingsError(f"{pod.ENV_PORT} is {text[:80]!r}: expected a port, which the operator writes")
    return int(text)


def pod_folder(env: Mapping[str, str]) -> Path:
    return Path(env.get(pod.ENV_POD_FOLDER) or pod.POD_FOLDER)


def _index(env: Mapping[str, str], job: JobFacts) -> int | None:
    if place := env.get(pod.ENV_PLACE):
        return group_rank(read_place(place), job.groups, job.shape.actives)
    index = env.get(pod.ENV_INDEX, "")
    return int(index) if index else None


def _job(file: Path) -> JobFacts:
    text = _read(file, "the operator's description of the job")
    try:
        facts: JobFacts = from_plain(JobFacts, json.loads(text))
    except (ValueError, TypeError, RecursionError):  # their texts quote the file
        raise SettingsError(f"{file}: expected a JobFacts as JSON, which the operator writes") from None
    return facts


def _own_field(file: Path) -> str:
    """A field of the pod itself, which the kubelet writes."""
    text = _read(file, f"the pod's {file.name}").decode(errors="replace")
    if not text:
        raise SettingsError(f"{file} is empty: expected the pod's {file.name}, which the kubelet writes")
    return text


def _key(path: Path, what: str) -> bytes:
    try:
        key = bytes.fromhex(_read(path, what).decode())
    except ValueError:  # its text quotes the file
        key = b""
    if len(key) != KEY_BYTES:
        raise SettingsError(f"{path}: expected {what} as {2 * KEY_BYTES} hexadecimal digits, which the operator writes")
    return key


def _read(path: Path, what: str) -> bytes:
    try:
        return files.read_file(path, SECRET_BYTES, follow_links=True)
    except OSError as error:
        raise SettingsError(f"{what} cannot be read: {error}") from error


def _need(env: Mapping[str, str], name: str) -> str:
    value = env.get(name, "")
    if not value:
        raise SettingsError(f"{name} is not set: the operator sets it in every pod that it creates")
    return value
