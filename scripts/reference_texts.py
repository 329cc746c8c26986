"""The meanings of the names on docs/reference/names.md. The names themselves come from the code (reference_names.py).

reference_docs.py fails if a name of the code has no text here, or if a text has no name.
"""

PHASES = {
    "Pending": "No pod of the job has a node, or the job waits in a queue.",
    "Starting": "Pods start. The first round has not begun, or its workers have not started.",
    "Running": "The job trains.",
    "Recovering": "A fault has ended a round, and no worker has made a step in the next round yet.",
    "Restarting": "The whole job restarts. Pods or Jobs of the previous attempt still exist.",
    "Suspended": "`spec.suspend` is true.",
    "Succeeded": "The job has succeeded.",
    "Failed": "The job has failed.",
}

CONDITIONS = {
    "Ready": "The job trains: the workers of all pods of the newest round run, and no recovery is open. Without a "
    "launcher: all pods of all Jobs that have started are ready or have ended. If it is False, the message says what "
    "is missing.",
    "FaultTolerant": "The job has a launcher. If not, it behaves as a JobSet; the message has the reason and the fix.",
    "Recovering": "A recovery is open. `status.lastRecovery` has no `pauseSeconds` yet.",
    "SparesReady": "All spares are ready. The message counts them, and names lost or waiting pods.",
    "PoolAvailable": "The pool of `spares.pool` can replace a lost pod. Absent without `spares.pool`.",
    "WorkersForked": "The fork server forks all workers. Absent until a pod reports that its workers are not forked. "
    "The message then names the cause and the fix.",
    "SlowRank": "All ranks wait for one rank in each step. The message names the rank, its pod and its node. Absent "
    "until a rank was found to be slow.",
    "QuotaReserved": "Kueue has admitted the job. Absent without a queue.",
    "Completed": "The job has succeeded.",
    "Failed": "The job has failed. The message names the Job that failed, and why.",
    "Suspended": "The job is suspended. Absent if it never was.",
    "StartupPolicyInProgress": "With `startupPolicy: InOrder`: a replicatedJob still waits for an earlier one.",
    "StartupPolicyCompleted": "With `startupPolicy: InOrder`: all replicatedJobs have started.",
    "Invalid": "The manifest cannot work. The message names the field. The job waits until you correct it.",
    "Blocked": "The API server rejects a request for a reason that may pass, such as a quota. The operator retries.",
    "Rolling": "Spares of an old template are being replaced.",
}
#: Conditions of a HotSparePool that have another meaning than those of a job.
POOL_CONDITIONS = {"Ready": "The pool has as many ready spares as it needs."}

REASONS = {
    "Completed": "The job has succeeded.",
    "Shrunk": "An elastic job trains with fewer pods than it declares. The message counts them.",
    "LauncherSet": "The manifest sets `spec.launcher`.",
    "LauncherDefaulted": "`spec.launcher` is unset, and the job has the launcher `{}`.",
    "LauncherOff": "`spec.launcher.mode` is Off.",
    "JobSetCompatible": "The job has the annotation `understudy.dev/jobset-compatible`.",
    "LauncherNotPossible": "`spec.launcher` is unset, and the job cannot have the launcher `{}`.",
    "EnoughSpares": "All spares are ready.",
    "TooFewSpares": "Fewer spares are ready than declared. The message counts them.",
    "NoSpareNeeded": "No rank is vacant, so the job needs no spare of the pool.",
    "SpareClaimed": "The job has claimed a spare. The message names the spare and its node.",
    "PoolEmpty": "The pool has no spare to claim.",
    "PoolNotFound": "The namespace has no pool of this name.",
    "Unschedulable": "No node has room for the pod, or the job's pod does not fit in the place of the spare.",
    "ClaimRejected": "A policy or a webhook rejects the claim.",
    "Forked": "The fork server forks the workers of all pods.",
    "NewProcesses": "The workers of a pod start as new processes.",
    "OthersWait": "The other ranks wait for a slow rank in each step.",
    "NoneFound": "No rank is slow any more.",
    "WaitingForQuota": "Kueue has not admitted the job.",
    "Admitted": "Kueue has admitted the job.",
    "NotManaged": "The job names a queue, but Kueue does not manage its pods.",
    "AllJobsCompleted": "All Jobs that the success policy names have succeeded.",
    "FailedJobs": "A Job has failed, and the job has no `failurePolicy`.",
    "ReachedMaxRestarts": "A Job has failed, and `failurePolicy.maxRestarts` are spent.",
    "FailJobSetFailurePolicyAction": "A rule of `failurePolicy` says that this failure fails the job.",
    "SuspendedJobs": "`spec.suspend` is true.",
    "ResumeJobs": "`spec.suspend` is false again.",
    "InOrderStartupPolicyInProgress": "The message names the replicatedJob that has not started.",
    "InOrderStartupPolicyCompleted": "All replicatedJobs have started.",
    "Accepted": "The API server has accepted all requests.",
    "InvalidSpec": "The operator has found an error in the spec.",
    "Rejected": "The API server rejects an object that the operator creates from the manifest.",
    "QuotaExceeded": "A ResourceQuota has no room.",
    "AdmissionDenied": "An admission webhook or policy rejects the request.",
    "WebhookUnavailable": "An admission webhook does not respond.",
    "NamespaceTerminating": "The namespace is being deleted.",
    "Forbidden": "The operator lacks a right.",
    "NameTaken": "Another object has the name of an object that the job needs.",
    "ServerError": "The API server returned an error of 500 or above.",
    "Preempted": "The scheduler or Kueue has preempted a spare for a pod of higher priority.",
    "Evicted": "A spare was evicted, for example by `kubectl drain`.",
    "Rolling": "The operator replaces the spares one after the other.",
    "UpToDate": "All spares have the newest template.",
}

EVENTS = {
    "Started": "The first round of the job has begun.",
    "LauncherDefaulted": "`spec.launcher` is unset, and the job has the launcher `{}`. Written once.",
    "FaultDetected": (
        "A fault has ended the round. The message names its kind, rank, pod, and node. There is another event if "
        "another pod proves to have failed first."
    ),
    "Recovered": "A recovery has ended. The message has its strategy, duration, and round.",
    "OutOfMemory": "The kubelet has reported that the container of a lost pod ran out of memory.",
    "Disrupted": "The API server has reported why a lost pod was evicted or preempted.",
    "SlowRank": "Condition SlowRank has become True. The event has its message.",
    "CoordinatorAppointed": "The operator has appointed a coordinator. The message has the reason.",
    "CoordinatorElected": "The pods have elected a coordinator.",
    "WeightUpdateFailed": "A weight update of an RL job has failed.",
    "Completed": "The job has succeeded.",
    "Failed": "The job has failed.",
    "Suspended": "The job is suspended.",
    "Resumed": "The job is resumed.",
    "JobRestart": "The whole job restarts.",
    "FailJobSetFailurePolicyAction": "`failurePolicy` fails the job.",
    "RestartJobSetFailurePolicyAction": "`failurePolicy` restarts the whole job.",
    "RestartJobSetAndIgnoreMaxRestartsFailurePolicyAction": "The same. The restart does not count.",
    "RestartJobFailurePolicyAction": "`failurePolicy` restarts one Job.",
    "RestartJobAndIgnoreMaxRestartsFailurePolicyAction": "The same. The restart does not count.",
    "ServerRestarted": "A rollout server has exited with code 0 before the training ended. Its Job is created again.",
    "RolloutsRestarted": "The rollout servers restart after a failed weight update.",
    "Rejected": "Condition Invalid or Blocked is True. The event has its message.",
    "DrillRejected": "A drill breaks nothing. The message has the reason and the fix.",
    "DrillStarted": "A drill breaks pods or a worker of the job on purpose. The message names them.",
    "NodeAvoided": "New pods of the job avoid a node on which the job has a pod.",
    "AvoidedNodeUsed": "A pod was scheduled to an avoided node, because no other node was free.",
    "WaitingForQuota": "The job waits in Kueue's queue.",
    "Admitted": "Kueue has admitted the job.",
    "NotManaged": "The job names a queue, but Kueue does not manage its pods.",
    "SpareClaimed": "The job has claimed a spare of a pool.",
    "PoolEmpty": "The pool has no spare to claim.",
    "PoolNotFound": "The namespace has no pool of the name in `spares.pool`.",
    "Unschedulable": "No node has room for a pod, or the job's pod does not fit in the place of a spare.",
    "ClaimRejected": "The API server rejects the claim of a spare.",
    "NetworkPolicyConflict": "Another object has the name of the job's NetworkPolicy.",
    "NotInjected": "The pods of the Job, JobSet, or PyTorchJob cannot train as one job.",
    "MalformedObject": "The operator cannot read the object, which may be a pod, a Job or a node. The message names "
    "the field.",
    "ReconcileFailed": "A bug of Understudy. The operator's log has the traceback. The operator retries.",
    "Rolling": "The operator replaces the spares of an old template.",
    "RollingUpdateCompleted": "All spares have the newest template.",
    "Resized": "The computed number of spares has changed. The message has the reason.",
    "Preempted": "The scheduler or Kueue has preempted a spare for a pod of higher priority.",
    "Evicted": "A spare was evicted, for example by `kubectl drain`.",
    "QuotaExceeded": "A ResourceQuota has no room for a spare.",
    "AdmissionDenied": "An admission webhook or policy rejects a spare.",
    "WebhookUnavailable": "An admission webhook does not respond.",
    "NamespaceTerminating": "The namespace is being deleted.",
    "Forbidden": "The operator lacks a right.",
    "NameTaken": "Another object has the name of an object that the pool needs.",
    "ServerError": "The API server returned an error of 500 or above.",
}

#: By the name of the enum.
VALUES = {
    "Fault": {
        "Process": "A worker failed.",
        "Pod": "A pod was lost, or its launcher or sidecar ended.",
        "Node": "A node stopped responding, or was reported as faulty.",
        "Hang": "No worker made a step within the limit of `faults.hang`.",
        "WeightUpdate": "A weight update of an RL job failed.",
    },
    "Strategy": {
        "InPlace": "All workers restart in their pods.",
        "SpareSwap": "A spare takes the ranks of the pod.",
        "PodRecreate": "The ranks wait for a pod that the operator creates.",
        "JobRestart": "The whole job restarts.",
    },
    "Outcome": {
        "Recovered": "Training continued.",
        "Failed": "The job failed before training continued.",
        "Suspended": "The job was suspended before training continued.",
        "Unknown": "The operator has not seen the end, because many faults followed.",
    },
    "FaultClass": {
        "Hardware": "The hardware of the node is broken. No worker saves there.",
        "Maintenance": "The node will be taken down, and works until then.",
        "Preemption": "The cloud provider will take the node back soon.",
    },
}

LAUNCHER_EXITS = {
    0: "The job has succeeded. Spares exit with 0, too.",
    1: "SIGTERM on a faulty node, or with `onSigterm: Never`: no save was tried.",
    64: "The command is missing, or ends without the torchrun that it names, or torchrun has an option that Understudy "
    "rejects.",
    70: "A bug in Understudy. The log contains the traceback.",
    78: "A variable that the operator sets has an invalid value.",
    81: "The job has failed.",
    82: "The job was suspended.",
    83: "The job was deleted, or restarts as a whole.",
    84: "The pod is being replaced.",
    85: "The spare of a pool has failed its self-check.",
    127: "The image has no Python 3.9 or newer for the launcher, or `launcher.python` names an older one.",
    137: "The workers did not end within the grace period.",
    143: "SIGTERM, and no worker failed.",
}

LOCAL_EXITS = {
    0: "The job has succeeded.",
    1: "The job has failed.",
    2: "The command line is wrong, or the script cannot start.",
    130: "Ctrl-C, SIGTERM or SIGHUP.",
}

COMMAND_EXITS = {
    0: "The command has printed its output.",
    1: "`doctor` has found an error. Or `drain` or `drill` is not possible now, or not done within `--timeout`.",
    2: "The command line, the kubeconfig, or a package of the installation is wrong.",
    3: "The job, the run, or a line of a log was not found.",
    4: "The API server does not respond, or rejects a request. Or the local run does not respond.",
    130: "Ctrl-C.",
}

LABELS = {
    "understudy.dev/job-name": "Each object of a job: the name of the job.",
    "understudy.dev/job-uid": "Each object of a job: the UID of the job. A spare of a pool: the UID of the pool.",
    "understudy.dev/role": "Pod: `active` if it has ranks, `spare` if it waits.",
    "understudy.dev/coordinator": "Pod: `true` if its sidecar is the coordinator of the job.",
    "understudy.dev/replicated-job": "Pod: the name of its replicatedJob.",
    "understudy.dev/attempt": "Pod, Secret: the epoch before this attempt of the job. Absent in the first attempt.",
    "understudy.dev/pool": "Spare of a pool: the name of the HotSparePool.",
    "understudy.dev/template-hash": "Spare of a pool: a hash of the template that it was created from.",
    "understudy.dev/claimed-by-uid": "Spare of a pool: the UID of the job that has claimed it.",
    "understudy.dev/pool-uid": "Pod of a job: the UID of the pool that it came from.",
    "understudy.dev/inject": "Pod: `enabled` makes the webhook inject it. Namespace: `enabled` permits injection.",
}

ANNOTATIONS = {
    "understudy.dev/drain": "Pod: why a spare shall take its ranks. Users and `understudy drain` write it. The value "
    "`false`, or no value, withdraws it. It has no effect in a pod template.",
    "understudy.dev/drill": "TrainingJob: what to break now, on purpose, and the time of the request, such as "
    "`Process 2026-11-26T04:30:00Z`. `understudy drill` writes it.",
    "understudy.dev/group-rank": "Pod with ranks: its number among the pods with ranks.",
    "understudy.dev/avoided-nodes": "Pod: the nodes that it may not use, separated by commas.",
    "understudy.dev/least-preferred-nodes": "Pod: the nodes that it uses if no other is free, separated by commas.",
    "understudy.dev/written-fields": "Job: the fields of its pod template that the operator has written.",
    "understudy.dev/spec-hash": "Pod, Job: a hash of the replicatedJobs that it was created from.",
    "understudy.dev/failed-starts": "Pod: how many pods before it failed in a row before they could take part.",
    "understudy.dev/gang-member": "Spare that replaces a lost pod of a group in a queue: `true`.",
    "understudy.dev/faulty": "Node: why it is faulty. `false` reports it as healthy. Users and tools write it.",
    "understudy.dev/maintenance": "Node: why it will leave soon. Users and tools write it.",
    "understudy.dev/fault-expires": "Node: when `faulty` and `maintenance` expire, in RFC 3339 or Unix seconds.",
    "understudy.dev/ignore-faults-before": "Node: faults before this time do not count.",
    "understudy.dev/jobset-compatible": 'TrainingJob: `"true"`: without `spec.launcher` it behaves as a JobSet.',
    "understudy.dev/claimed-by": "Spare of a pool: the name of the job that has claimed it.",
    "understudy.dev/claimed-at": "Spare of a pool: when the job claimed it.",
    "understudy.dev/warm-pool-uid": "Pod of a job that was a warm spare of a pool: the UID of the pool.",
    "understudy.dev/adopted-at": "Pod of a job that was a warm spare of a pool: when its sidecar accepted the job.",
    "understudy.dev/claimed-pod-uid": "Pod of a job: the UID of the pool's spare whose place it has taken.",
    "understudy.dev/trainer-container": "Injected pod: the name of its trainer container.",
    "understudy.dev/pod-index": "Injected pod: its replicatedJob, the index of its Job, and its own index.",
    "understudy.dev/node-verdict": "Pod: the node health verdict as JSON, for pods without a coordinator.",
}

FINALIZERS = {
    "understudy.dev/claim": "Claimed spare of a pool: keeps the object until the job has a pod in its place.",
}

VARIABLES = {
    "UNDERSTUDY_POD_IP": "The address of the pod.",
    "UNDERSTUDY_MEMBERSHIP_PORT": "Pod with hostNetwork: the port of the sidecar. The next one is for probes.",
    "UNDERSTUDY_NODE": "The node of the pod.",
    "UNDERSTUDY_INDEX": "The group rank that the pod was created for. A spare has none.",
    "UNDERSTUDY_PLACE": "Injected pod: its replicatedJob, the index of its Job, and its own index.",
    "UNDERSTUDY_TEMPLATE_VARIABLES": "Spare of a pool: the names of its template's variables, as a JSON list.",
    "UNDERSTUDY_POOL": "Spare of a pool: the UID of the pool.",
    "UNDERSTUDY_DEVICES": "Spare of a pool: how many devices its trainer container has requested.",
    "UNDERSTUDY_STATE_FOLDER": "The folder in which the sidecar stores its state.",
    "UNDERSTUDY_FOLDER": "The folder that sidecar and trainer container share.",
    "UNDERSTUDY_POD_FOLDER": "The folder with the sidecar's keys, the facts about its job, and fields of its pod.",
    "UNDERSTUDY_SHIPPED_FOLDER": "The folder whose files the sidecar copies into the shared folder.",
    "UNDERSTUDY_LISTEN": "The address on which the sidecar listens. All addresses if unset.",
    "UNDERSTUDY_NPROC_PER_NODE": "Workers in the pod.",
    "UNDERSTUDY_GRACE_SECONDS": "The termination grace period of the pod.",
    "UNDERSTUDY_ZYGOTE": "`false`: every worker is a new process (`launcher.forkServer`).",
    "UNDERSTUDY_PRELOAD": "Modules that the fork server imports, separated by commas (`launcher.preload`).",
    "UNDERSTUDY_LOG_PREFIX": "`false`: workers write directly to the container's log (`launcher.logPrefix`).",
    "UNDERSTUDY_ON_SIGTERM": "`termination.onSigterm`.",
    "UNDERSTUDY_WARMUP": "Spare: the warm-up command, as a JSON list.",
    "UNDERSTUDY_NOLOGIN": "`faults.nodeFile`, for the sidecar.",
    "UNDERSTUDY_STEP_TIMEOUT_SECONDS": "`faults.hang.stepTimeout`.",
    "UNDERSTUDY_START_TIMEOUT_SECONDS": "`faults.hang.startTimeout`.",
    "UNDERSTUDY_WORKER_GRACE_PERIOD_SECONDS": "`recovery.workerGracePeriod`.",
    "UNDERSTUDY_SLOW_RANK_PERCENT": "`0`: workers do not report when they enter collectives "
    "(`launcher.slowRankPercent`).",
    "UNDERSTUDY_SNAPSHOT_BYTES": "`snapshots.size`, in bytes.",
    "UNDERSTUDY_SNAPSHOT_EVERY": "`snapshots.every`.",
    "UNDERSTUDY_SNAPSHOT_COPIES": "`snapshots.copies`.",
    "UNDERSTUDY_SNAPSHOT_STORAGE_PATH": "`snapshots.storage.path`.",
    "UNDERSTUDY_SNAPSHOT_STORAGE_EVERY": "`snapshots.storage.every`.",
    "UNDERSTUDY_SNAPSHOT_STORAGE_KEEP": "`snapshots.storage.keep`.",
    "UNDERSTUDY_SNAPSHOT_FD": "Workers: the file descriptor that `snapshot` uses.",
    "UNDERSTUDY_WORKER_PARENT": "Workers that are fresh processes: the process that starts them. Their Python removes "
    "it.",
    "UNDERSTUDY_ROUND": "Workers: epoch, term, and round, separated by dots. It increases with each round.",
    "UNDERSTUDY_STEP_FD": "Workers: the file descriptors that `step()` uses.",
    "UNDERSTUDY_AUTOMATIC_STEPS": "Workers, set by users: `false` if the steps of optimizers are not to be reported.",
    "UNDERSTUDY_STEP_FOLDER": "Workers of torchrun: the folder with the files that `step()` uses.",
    "UNDERSTUDY_MODE": "Auto: if the command calls torchrun, the launcher runs the workers of that call.",
    "UNDERSTUDY_TORCHRUN_SOCKET": "torchrun: the socket over which it passes its job to the launcher.",
    "UNDERSTUDY_FORK_FALLBACK": "torchrun: why it runs its workers itself.",
    "UNDERSTUDY_NNODES": "torchrun: the number of pods, or a range.",
    "UNDERSTUDY_RUN_ID": "torchrun: the name of the job.",
    "UNDERSTUDY_TORCHRUN": "torchrun: not empty if the command of the pod starts it.",
    "UNDERSTUDY_ROLLOUTS": "Workers of an RL job: the addresses of gateways and rollout servers, as JSON.",
    "UNDERSTUDY_ROLLOUT_TOKEN_FILE": "Workers of an RL job: the file with the token for the gateways.",
    "UNDERSTUDY_ROLLOUTS_SOCKET": "Workers of an RL job: the socket for reports of weight updates.",
}
