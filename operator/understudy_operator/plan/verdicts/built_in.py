"""The built-in sources. docs/how-to/faults.md names the documentation of each; the chart's values add further sources.

Precedence: 100 for annotations, which a person sets; 20 for hardware; 15 for the reason why NVSentinel has quarantined
a node if that is not its hardware; 10 for a source that is more precise than another one that reports at the same time;
0 for all other sources. A row of the values has 50 by default.

A signal is Hardware if it reports that a device or the machine is lost. A kernel or a daemon in trouble is Maintenance:
the memory of the workers is intact and can be saved.
"""

from understudy_operator.plan.verdicts.fault_sources import READY, FaultSource, Polarity, SignalKind
from understudy_operator.plan.verdicts.xids import FATAL
from understudy_protocol import pod as names
from understudy_protocol.enums import FaultClass

MANUAL_PRECEDENCE = 100
HARDWARE_PRECEDENCE = 20
EXPLAINED_PRECEDENCE = 15
STATE_PRECEDENCE = 10
UNSET_VALUES = ("", "false")

#: GKE, Azure and AWS announce the end of a spot machine 30, 30 and 120 seconds before it; pods get this much of that
#: time.
GKE_GRACE_S = 15.0
AKS_GRACE_S = 15.0
AWS_GRACE_S = 90.0


def _condition(name: str, *keys: str, value: str = "True", xids: frozenset[int] = frozenset()) -> FaultSource:
    """A condition about hardware."""
    values = (value,)
    return FaultSource(name, SignalKind.CONDITION, keys, values, xids=xids, precedence=HARDWARE_PRECEDENCE)


def _maintenance(name: str, *keys: str, values: tuple[str, ...] = ("True",), precedence: int = 0) -> FaultSource:
    """A condition about a kernel, a daemon or a plan of the cloud."""
    fault_class = FaultClass.MAINTENANCE
    return FaultSource(name, SignalKind.CONDITION, keys, values, fault_class=fault_class, precedence=precedence)


def _taint(name: str, *keys: str, fault_class: FaultClass, grace_s: float | None = None) -> FaultSource:
    return FaultSource(name, SignalKind.TAINT, keys, fault_class=fault_class, grace_s=grace_s)


BUILT_IN: tuple[FaultSource, ...] = (
    FaultSource(
        "annotation",
        SignalKind.ANNOTATION,
        (names.ANNOTATION_FAULTY,),
        excepted=UNSET_VALUES,
        until=names.ANNOTATION_FAULT_EXPIRES,
        precedence=MANUAL_PRECEDENCE,
    ),
    FaultSource(
        "annotation-healthy",
        SignalKind.ANNOTATION,
        (names.ANNOTATION_FAULTY,),
        values=("false",),
        polarity=Polarity.HEALTHY,
        precedence=MANUAL_PRECEDENCE,
    ),
    FaultSource(
        "annotation-maintenance",
        SignalKind.ANNOTATION,
        (names.ANNOTATION_MAINTENANCE,),
        excepted=UNSET_VALUES,
        until=names.ANNOTATION_FAULT_EXPIRES,
        fault_class=FaultClass.MAINTENANCE,
        precedence=MANUAL_PRECEDENCE,
    ),
    # NVSentinel also quarantines for cloud maintenance, and if its GPU check cannot connect: the conditions show it.
    FaultSource(
        "nvsentinel-state", SignalKind.LABEL, ("dgxc.nvidia.com/nvsentinel-state",), precedence=STATE_PRECEDENCE
    ),
    _maintenance(
        "nvsentinel-maintenance", "CSPMaintenance", "GpuDcgmConnectivityFailure", precedence=EXPLAINED_PRECEDENCE
    ),
    _condition("nvsentinel-gpu", "Gpu*Watch"),
    _condition("nvsentinel-xid", "SysLogsXIDError", xids=FATAL),
    _condition("nvsentinel-syslog", "SysLogsSXIDError", "SysLogsGPUFallenOff", "NVSwitchFatalError"),
    _condition("gpu-xid", "*XID*", "*Xid*", xids=FATAL),
    _condition("node-problem-detector", "CperHardwareErrorFatal"),
    _maintenance("node-problem-detector-kernel", "KernelDeadlock", "XfsShutdown", "ReadonlyFilesystem"),
    _maintenance("node-problem-detector-software", "KubeletUnhealthy", "ContainerRuntimeUnhealthy"),
    _condition("aks-gpu", "GPUMissing", "NVLinkStatusInactive"),
    _maintenance(
        "aks-node",
        "VMEventScheduled",
        "IBLinkFlapping",
        "FilesystemCorruptionProblem",
        "KubeletProblem",
        "ContainerRuntimeProblem",
    ),
    FaultSource(
        "aks-spot",
        SignalKind.CONDITION,
        ("PreemptionScheduled",),
        values=("True",),
        fault_class=FaultClass.PREEMPTION,
        grace_s=AKS_GRACE_S,
    ),
    _condition("eks-accelerator", "AcceleratedHardwareReady", value="False"),
    _maintenance(
        "eks-node", "KernelReady", "StorageReady", "NetworkingReady", "ContainerRuntimeReady", values=("False",)
    ),
    FaultSource(
        "hyperpod",
        SignalKind.LABEL,
        ("sagemaker.amazonaws.com/node-health-status",),
        values=("UnschedulablePendingReplacement", "UnschedulablePendingReboot"),
        precedence=HARDWARE_PRECEDENCE,
    ),
    FaultSource(
        "hyperpod-checks",
        SignalKind.LABEL,
        ("sagemaker.amazonaws.com/node-health-status",),
        values=("Unschedulable",),
        fault_class=FaultClass.MAINTENANCE,
    ),
    FaultSource(
        "gke-maintenance",
        SignalKind.LABEL,
        ("cloud.google.com/active-node-maintenance",),
        values=("ONGOING",),
        fault_class=FaultClass.MAINTENANCE,
        precedence=STATE_PRECEDENCE,  # the node also has the taint of gke-termination
    ),
    _taint(
        "gke-termination",
        "cloud.google.com/impending-node-termination",
        fault_class=FaultClass.PREEMPTION,
        grace_s=GKE_GRACE_S,
    ),
    _taint("aws-spot", "aws-node-termination-handler/spot-itn", fault_class=FaultClass.PREEMPTION, grace_s=AWS_GRACE_S),
    _taint(  # AWS may take the spot machine soon, at an unknown time
        "aws-rebalance",
        "aws-node-termination-handler/rebalance-recommendation",
        fault_class=FaultClass.PREEMPTION,
    ),
    _taint(
        "aws-maintenance",
        "aws-node-termination-handler/scheduled-maintenance",
        "aws-node-termination-handler/asg-lifecycle-termination",
        fault_class=FaultClass.MAINTENANCE,
    ),
    _taint(
        "autoscaler",
        "ToBeDeletedByClusterAutoscaler",
        "karpenter.sh/disrupted",
        fault_class=FaultClass.MAINTENANCE,
    ),
    FaultSource("cordon", SignalKind.CORDON, fault_class=FaultClass.MAINTENANCE),
    _maintenance("not-ready", READY, values=("False", "Unknown")),
)
