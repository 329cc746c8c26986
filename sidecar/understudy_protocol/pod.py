"""Names that the operator writes into a pod and the programs inside read: labels, annotations, files, variables, ports.

They are in one place, so that the two sides cannot differ.
"""

from dataclasses import dataclass, field
from typing import Optional

from understudy_protocol.enums import OnFailedUpdate, Proactive

GROUP = "understudy.dev"

LABEL_JOB = f"{GROUP}/job-name"
LABEL_JOB_UID = f"{GROUP}/job-uid"
LABEL_ROLE = f"{GROUP}/role"  # active | spare, moved with the ranks
LABEL_COORDINATOR = f"{GROUP}/coordinator"  # "true" on one pod a job; the Service selects it
LABEL_REPLICATED_JOB = f"{GROUP}/replicated-job"
LABEL_ATTEMPT = f"{GROUP}/attempt"  # the newest epoch before this attempt; not set in the first attempt
ANNOTATION_GROUP_RANK = f"{GROUP}/group-rank"
ANNOTATION_DRAIN = f"{GROUP}/drain"  # of a pod: why a spare shall take its ranks; "" or "false": it keeps them

ANNOTATION_AVOIDED_NODES = f"{GROUP}/avoided-nodes"  # of a pod: the nodes that it must avoid, with commas between
ANNOTATION_LEAST_PREFERRED_NODES = f"{GROUP}/least-preferred-nodes"  # the nodes that it gets only if no other is free
ANNOTATION_WRITTEN_FIELDS = f"{GROUP}/written-fields"  # of a Job: the fields of its template that the operator wrote
ANNOTATION_SPEC_HASH = f"{GROUP}/spec-hash"  # of a pod, or a Job: World.template_hash, ReplicatedJob.template_hash
ANNOTATION_FAILED_STARTS = f"{GROUP}/failed-starts"  # of a pod: number of consecutive failed pods before it
ANNOTATION_GANG_MEMBER = f"{GROUP}/gang-member"  # "true" on a spare that replaces a lost pod: plan/capacity/gang.py
#: Of a TrainingJob, or of a pod of an injected job: what to break now, and the time of the request.
ANNOTATION_DRILL = f"{GROUP}/drill"
ANNOTATION_FAULTY = f"{GROUP}/faulty"  # of a node: why it is faulty; "false": it is not, despite all other sources
ANNOTATION_MAINTENANCE = f"{GROUP}/maintenance"  # of a node: why it will leave soon
ANNOTATION_FAULT_EXPIRES = f"{GROUP}/fault-expires"  # of a node: when the two above expire, as RFC 3339 or Unix seconds
ANNOTATION_IGNORE_FAULTS_BEFORE = f"{GROUP}/ignore-faults-before"  # of a node: a time; faults before it do not count
ANNOTATION_JOBSET_COMPATIBLE = f"{GROUP}/jobset-compatible"  # of a TrainingJob: "true": no launcher by default

#: Of shared spares. A pool's pod has the pool's uid as LABEL_JOB_UID: this label has the owner's uid.
LABEL_POOL = f"{GROUP}/pool"  # of a pool's pod: the HotSparePool's name
LABEL_TEMPLATE_HASH = f"{GROUP}/template-hash"  # of a pool's pod: hash of the template that it was created from
LABEL_CLAIMED_BY_UID = f"{GROUP}/claimed-by-uid"  # of a pool's pod: the uid of the job that has claimed it
ANNOTATION_CLAIMED_BY = f"{GROUP}/claimed-by"  # the same job's name
ANNOTATION_CLAIMED_AT = f"{GROUP}/claimed-at"
FINALIZER_CLAIM = f"{GROUP}/claim"  # keeps a claimed pod's object until the job has a pod in its place
ANNOTATION_WARM_POOL_UID = f"{GROUP}/warm-pool-uid"  # of a job's pod that was a pool's spare: the pool's uid
ANNOTATION_ADOPTED_AT = f"{GROUP}/adopted-at"  # of such a pod: when it accepted the job's order
LABEL_POOL_UID = f"{GROUP}/pool-uid"  # of a job's pod: the uid of the pool that it came from
ANNOTATION_CLAIMED_POD_UID = f"{GROUP}/claimed-pod-uid"  # of a job's pod: the uid of the pool's pod that it replaces

# Of a pod that the webhook has injected. docs/how-to/inject.md describes the names that users write.
LABEL_INJECT = f"{GROUP}/inject"  # INJECTION_ENABLED on a pod that the webhook shall inject
INJECTION_ENABLED = "enabled"
ANNOTATION_TRAINER_CONTAINER = f"{GROUP}/trainer-container"  # of an injected pod: the name of its trainer container
ANNOTATION_POD_INDEX = f"{GROUP}/pod-index"  # replicatedJob/Job index/pod index

ROLE_ACTIVE = "active"
ROLE_SPARE = "spare"

SIDECAR_CONTAINER = "understudy-sidecar"
SHARED_VOLUME = "understudy"
SHARED_FOLDER = "/understudy"  # memory-backed emptyDir of sidecar and trainer
SHM_VOLUME, SHM_FOLDER = "understudy-shm", "/dev/shm"  # noqa: S108 - a volume of the trainer container (launcher.sharedMemory)

#: Kubernetes mounts the pod's service account here into each container, unless another volume is mounted here.
SERVICE_ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"

#: The sidecar's own files, which the kubelet writes: from Secrets, and from fields of the pod. Only the sidecar mounts
#: the volume. In its place, the sidecar would have the token of the service account.
POD_VOLUME, POD_FOLDER = "understudy-pod", SERVICE_ACCOUNT_FOLDER
KEY_FILE = "key"
OPERATOR_KEY_FILE = "operator.pub"  # the operator's public X25519 key, 64 hexadecimal digits
JOB_FILE = "job.json"  # JobFacts as JSON
POD_NAME_FILE, POD_UID_FILE = "name", "uid"
VERDICT_ANNOTATION_FILE = "verdict"  # the pod's ANNOTATION_NODE_VERDICT, which the kubelet keeps up to date

GATEWAY_CONTAINER = "understudy-gateway"  # in front of a rollout server
GATEWAY_VOLUME = "understudy-gateway"  # memory-backed: a gateway's state of the weights, for its next process
GATEWAY_FOLDER = "/understudy-gateway"  # mounted in the gateway alone
ROLLOUT_VOLUME = "understudy-rollouts"
ROLLOUT_FOLDER = "/understudy-rollouts"  # mounted in gateways and trainers
ROLLOUT_TOKEN_KEY = "rollouts"  # noqa: S105 — of the Secret: the token by which gateways recognize their trainers
ROLLOUT_TOKEN_FILE = "token"  # noqa: S105

STATE_VOLUME = "understudy-state"
STATE_FOLDER = "/understudy-state"  # memory-backed, mounted in the sidecar only: no trainer can read or fill it

NODE_VOLUME = "understudy-node"
NODE_FOLDER = "/understudy-node"  # in the sidecar only: the node's folder of faults.nodeFile, read-only

ANNOTATION_NODE_VERDICT = f"{GROUP}/node-verdict"  # of a pod: a membership.NodeVerdict, for pods without a coordinator

#: The extended resource. A waiting pod must see as many devices as it requested.
DEVICES = "nvidia.com/gpu"

VARIABLES_FILE = "variables.json"  # in the shared folder: JobFacts.variables, for the launcher
VERDICT_FILE = "verdict.json"  # a membership.NodeVerdict, written by the sidecar and read by the launcher
COPIES_SOCKET = "copies.sock"  # in the shared folder: the launcher passes its memory for snapshots to the sidecar
LAUNCHER_SOCKET = "sidecar.sock"
TORCHRUN_SOCKET = "torchrun.sock"  # of the launcher, for the torchrun that its command calls: torchrun.py
ROLLOUTS_SOCKET = "rollouts.sock"  # for workers' reports of weight updates: a membership.Replicas in a line
LAUNCHER_ZIPAPP = "launcher.pyz"
LAUNCHER_SCRIPT = "launch"
TORCHRUN_SCRIPT = "launch-torchrun"
PLAIN_SCRIPT = "with-understudy"  # runs a command as it is, with PYTHON_FOLDER on PYTHONPATH
PYTHON_FOLDER = "python"  # packages that workers may import (understudy_torch, understudy_jax, …), and the zygote
ZYGOTE_MODULE = f"{PYTHON_FOLDER}/understudy_zygote/__main__.py"
FRESH_FOLDER = "understudy_zygote/fresh"  # in PYTHON_FOLDER: on PYTHONPATH when the Python of a fresh worker starts

COORDINATOR_PORT = 8478
MEMBERSHIP_PATH = "/v1/membership"  # of the WebSocket on that port
HEALTH_PORT = 8479


def health_port(membership_port: int) -> int:
    """The port of probes and metrics, next to the port on which the sidecar listens."""
    return membership_port + HEALTH_PORT - COORDINATOR_PORT


ENV_PORT = "UNDERSTUDY_MEMBERSHIP_PORT"  # that the sidecar listens on, with hostNetwork; COORDINATOR_PORT unless set
ENV_POD_IP = "UNDERSTUDY_POD_IP"
ENV_NODE = "UNDERSTUDY_NODE"
ENV_INDEX = "UNDERSTUDY_INDEX"  # not set: a spare
ENV_PLACE = "UNDERSTUDY_PLACE"  # of an injected pod, in place of the index
VARIABLES_PREFIX = "UNDERSTUDY_"  # of all of these, and of one that users set: ENV_AUTOMATIC_STEPS
ENV_TEMPLATE_VARIABLES = "UNDERSTUDY_TEMPLATE_VARIABLES"  # of a pool's spare: its template's names, a JSON list
ENV_POOL = "UNDERSTUDY_POOL"  # of a pool's spare, which has no job yet: the pool's uid
ENV_DEVICES = "UNDERSTUDY_DEVICES"  # number of devices that the trainer requested; not set: none
ENV_STATE_FOLDER = "UNDERSTUDY_STATE_FOLDER"  # STATE_FOLDER unless set
ENV_SHARED_FOLDER = "UNDERSTUDY_FOLDER"
ENV_POD_FOLDER = "UNDERSTUDY_POD_FOLDER"  # POD_FOLDER unless set; not set in a pod
ENV_SHIPPED_FOLDER = "UNDERSTUDY_SHIPPED_FOLDER"  # files that the sidecar copies into the shared folder
ENV_LISTEN = "UNDERSTUDY_LISTEN"  # the one address that the sidecar listens on; all unless set
ENV_MODE = "UNDERSTUDY_MODE"  # Auto: if the command calls torchrun, the launcher runs the workers of that call
ENV_NPROC = "UNDERSTUDY_NPROC_PER_NODE"
ENV_GRACE = "UNDERSTUDY_GRACE_SECONDS"
ENV_ZYGOTE = "UNDERSTUDY_ZYGOTE"  # "false": every worker is a new process
ENV_PRELOAD = "UNDERSTUDY_PRELOAD"  # modules that the zygote imports, with commas between
ENV_LOG_PREFIX = "UNDERSTUDY_LOG_PREFIX"  # "false": workers write into the container's log themselves
ENV_ON_SIGTERM = "UNDERSTUDY_ON_SIGTERM"  # Auto, Always or Never: whether workers may save at SIGTERM
ENV_WARMUP = "UNDERSTUDY_WARMUP"  # of a spare: a command as a JSON list, run once before any round
ENV_NOLOGIN = "UNDERSTUDY_NOLOGIN"  # for the sidecar: a file on the node; its folder is mounted at NODE_FOLDER
ENV_STEP_TIMEOUT = "UNDERSTUDY_STEP_TIMEOUT_SECONDS"  # a worker without a step for this time hangs; not set: never
ENV_START_TIMEOUT = "UNDERSTUDY_START_TIMEOUT_SECONDS"  # for workers: write stacks also before the first step
#: For workers that a round replaces; not set: the launcher's default.
ENV_WORKER_GRACE_PERIOD = "UNDERSTUDY_WORKER_GRACE_PERIOD_SECONDS"
#: For workers; "0": they do not report when they enter collectives. The coordinator has it in its JobShape.
ENV_SLOW_RANK_PERCENT = "UNDERSTUDY_SLOW_RANK_PERCENT"
ENV_SNAPSHOT_BYTES = "UNDERSTUDY_SNAPSHOT_BYTES"  # the largest state of a rank; not set: no snapshots
ENV_SNAPSHOT_EVERY = "UNDERSTUDY_SNAPSHOT_EVERY"  # snapshot.save() stores one of this many calls; 1 unless set
ENV_SNAPSHOT_COPIES = "UNDERSTUDY_SNAPSHOT_COPIES"  # other pods that keep a copy of each snapshot; 0 unless set
#: A folder for snapshots, in the trainer container; not set: none are stored. One of so many steps; so many of them.
#: Workers get the folder only if their pod has no memory for snapshots.
ENV_SNAPSHOT_STORAGE_PATH = "UNDERSTUDY_SNAPSHOT_STORAGE_PATH"
ENV_SNAPSHOT_STORAGE_EVERY = "UNDERSTUDY_SNAPSHOT_STORAGE_EVERY"
ENV_SNAPSHOT_STORAGE_KEEP = "UNDERSTUDY_SNAPSHOT_STORAGE_KEEP"
ENV_SNAPSHOT_FD = "UNDERSTUDY_SNAPSHOT_FD"  # for workers: a file with their snapshots, snapshot_slots.py
ENV_WORKER_PARENT = "UNDERSTUDY_WORKER_PARENT"  # the process that starts a fresh worker, until its Python has started
ENV_ROUND = "UNDERSTUDY_ROUND"  # epoch.term.round, for the workers
ENV_STEP_FD = "UNDERSTUDY_STEP_FD"  # two files, for step() of the workers: understudy_torch/progress.py
#: For workers, set by users: "false" if the steps of optimizers are not to be reported.
ENV_AUTOMATIC_STEPS = "UNDERSTUDY_AUTOMATIC_STEPS"
ENV_STEP_FOLDER = "UNDERSTUDY_STEP_FOLDER"  # the same as paths, for torchrun's workers: they inherit no files
ENV_NNODES = "UNDERSTUDY_NNODES"  # for torchrun: pods, or MIN:MAX
ENV_RUN_ID = "UNDERSTUDY_RUN_ID"  # for torchrun
ENV_TORCHRUN = "UNDERSTUDY_TORCHRUN"  # for torchrun: not empty if the pod's command starts it, in mode Torchrun
ENV_TORCHRUN_SOCKET = "UNDERSTUDY_TORCHRUN_SOCKET"  # for torchrun: the path of TORCHRUN_SOCKET, in mode Auto
ENV_FORK_FALLBACK = "UNDERSTUDY_FORK_FALLBACK"  # for torchrun that runs its workers itself, in mode Auto: the reason
ENV_ROLLOUTS = "UNDERSTUDY_ROLLOUTS"  # for workers: addresses of gateways and servers, as JSON
ENV_ROLLOUT_TOKEN_FILE = "UNDERSTUDY_ROLLOUT_TOKEN_FILE"  # noqa: S105 — for workers: its path
ENV_ROLLOUTS_SOCKET = "UNDERSTUDY_ROLLOUTS_SOCKET"  # for workers of a job with rollouts: the path of that socket


@dataclass(frozen=True)
class JobShape:
    """The job's settings, which every sidecar has: any member may become the coordinator."""

    uid: str
    namespace: str
    name: str
    actives: int
    nproc_per_node: int
    in_place_max_restarts: int
    in_place_window_s: float
    min_actives: int = 0  # an elastic job may shrink to this number of members; 0: never
    spare_timeout_s: float = 30.0  # how long a vacant rank of an elastic job waits for a spare
    fence_s: float = 30.0  # after this time without a coordinator a member stops its workers; 0: never
    backoff_max_s: float = 30.0  # longest wait before a round, after rounds that failed at their start; 0: no wait
    grace_s: float = 30.0  # the longest termination grace period of the pods
    replica_groups: tuple[tuple[int, ...], ...] = ()  # group ranks that have the same shards; (): not known
    in_place_max_per_pod: Optional[int] = None  # restarts of one pod's workers before its eviction; None: any
    on_failed_update: Optional[OnFailedUpdate] = None  # None: the job has no rollouts
    update_retries: int = 0  # consecutive failed updates that the worker may retry
    proactive: Proactive = Proactive.OFF  # whether a bad verdict for its node evicts a member
    launcher_timeout_s: float = 15.0  # after this time without an answer of its launcher, a pod is replaced
    script_fault_rounds: int = 0  # the job ends after so many rounds in a row in which all ranks fail alike; 0: never
    start_timeout_s: float = 0.0  # a round without a first step after this time hangs; 0: never
    snapshots: bool = False  # whether the pods have memory for snapshots of the training
    snapshot_copies: int = 0  # other pods that keep a copy of each snapshot
    #: A rank is slow if it makes each step this long, in percent of the step's duration without the rank; 0: not
    #: checked.
    slow_rank_percent: int = 150


@dataclass(frozen=True)
class PodGroup:
    """Pods of one template in an injected job: a replicatedJob, a plain Job, or one replica type."""

    name: str
    first: int  # group rank of its first pod
    pods_per_job: int


@dataclass(frozen=True)
class JobFacts:
    """What the sidecars of a job's pods have to know. The operator writes it into a Secret."""

    shape: JobShape
    #: host:port of the coordinator's Service: its ClusterIP, so that no recovery needs DNS. "": the job has no such
    #: Service, because its only member is the coordinator.
    coordinator: str
    groups: tuple[PodGroup, ...] = ()  # of an injected job
    variables: dict[str, str] = field(default_factory=dict)  # for the launcher; those of an injected pod are in the pod


@dataclass(frozen=True)
class Place:
    """The position of an injected pod in its job, from its labels."""

    group: str
    job_index: int
    pod_index: int

    def __str__(self) -> str:
        return f"{self.group}/{self.job_index}/{self.pod_index}"


def read_place(text: str) -> Place:
    """Raises ValueError."""
    group, job_index, pod_index = text.split("/")
    if not (job_index.isdecimal() and pod_index.isdecimal()):
        raise ValueError(f"{text!r}: expected name/number/number")
    return Place(group, int(job_index), int(pod_index))


def group_rank(place: Place, groups: tuple[PodGroup, ...], actives: int) -> Optional[int]:
    """Ranks count through the groups, their Jobs, and the pods of each Job. A pod after the last rank is a spare."""
    group = next((group for group in groups if group.name == place.group), None)
    if group is None:
        return None
    rank = group.first + place.job_index * group.pods_per_job + place.pod_index
    return rank if rank < actives else None
