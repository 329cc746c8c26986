"""The built-in sources. docs/how-to/faults.md names the documentation of each; the chart's values add further sources.

Precedence: 100 for annotations, which a person sets; 20 for hardware; 15 for the reason why NVSentinel has quarantined
a node if that is not its hardware; 10 for a source that is more precise than another one that reports at the same time;
0 for all other sources. A row of the values has 50 by default.

A signal is Hardware if it reports that a device or the machine is lost. A kernel or a daemon in trouble is Maintenance:
the memory of the workers is intact and can be saved.
"""

from understudy_operator.plan.verdicts.sources import READY, FaultSource, Polarity, SignalKind
from understudy_operator.plan.verdicts.xids import FATAL
from understudy_protocol import pod as names
from understudy_protocol.enums import FaultClass

MANUAL_PRECEDENCE = 100
HARDWARE_PRECEDENCE = 20
EXPLAINED_PRECEDENCE = 15
STATE_PRECEDENCE = 10
UNSET_VALUES = ("", "false")

#: GKE, Azure and AWS announce the end of a spot machine 30, 30 and 120 seconds before it; pods get so much of it.
GKE_GRACE_S = 15.0
AKS_GRACE_S = 15.0
AWS_GRACE_S = 90.0

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
    FaultSource(
        "nvsentinel-maintenance",
        SignalKind.CONDITION,
        ("CSPMaintenance", "GpuDcgmConnectivityFailure"),
        values=("True",),
        fault_class=FaultClass.MAINTENANCE,
        precedence=EXPLAINED_PRECEDENCE,
    ),
    FaultSource(
        "nvsentinel-gpu", SignalKind.CONDITION, ("Gpu*Watch",), values=("True",), precedence=HARDWARE_PRECEDENCE
    ),
    FaultSource(
        "nvsentinel-xid",
        SignalKind.CONDITION,
        ("SysLogsXIDError",),
        values=("True",),
        xids=FATAL,
        precedence=HARDWARE_PRECEDENCE,
    ),
    FaultSource(
        "nvsentinel-syslog",
        SignalKind.CONDITION,
        ("SysLogsSXIDError", "SysLogsGPUFallenOff", "NVSwitchFatalError"),
        values=("True",),
        precedence=HARDWARE_PRECEDENCE,
    ),
    FaultSource(
        "gpu-xid",
        SignalKind.CONDITION,
        ("*XID*", "*Xid*"),
        values=("True",),
        xids=FATAL,
        precedence=HARDWARE_PRECEDENCE,
    ),
    FaultSource(
        "node-problem-detector",
        SignalKind.CONDITION,
        ("CperHardwareErrorFatal",),
        values=("True",),
        precedence=HARDWARE_PRECEDENCE,
    ),
    FaultSource(
        "node-problem-detector-kernel",
        SignalKind.CONDITION,
        ("KernelDeadlock", "XfsShutdown", "ReadonlyFilesystem"),
        values=("True",),
        fault_class=FaultClass.MAINTENANCE,
    ),
    FaultSource(
        "node-problem-detector-software",
        SignalKind.CONDITION,
        ("KubeletUnhealthy", "ContainerRuntimeUnhealthy"),
        values=("True",),
        fault_class=FaultClass.MAINTENANCE,
    ),
    FaultSource(
        "aks-gpu",
        SignalKind.CONDITION,
        ("GPUMissing", "NVLinkStatusInactive"),
        values=("True",),
        precedence=HARDWARE_PRECEDENCE,
    ),
    FaultSource(
        "aks-node",
        SignalKind.CONDITION,
        (
            "VMEventScheduled",
            "IBLinkFlapping",
            "FilesystemCorruptionProblem",
            "KubeletProblem",
            "ContainerRuntimeProblem",
        ),
        values=("True",),
        fault_class=FaultClass.MAINTENANCE,
    ),
    FaultSource(
        "aks-spot",
        SignalKind.CONDITION,
        ("PreemptionScheduled",),
        values=("True",),
        fault_class=FaultClass.PREEMPTION,
        grace_s=AKS_GRACE_S,
    ),
    FaultSource(
        "eks-accelerator",
        SignalKind.CONDITION,
        ("AcceleratedHardwareReady",),
        values=("False",),
        precedence=HARDWARE_PRECEDENCE,
    ),
    FaultSource(
        "eks-node",
        SignalKind.CONDITION,
        ("KernelReady", "StorageReady", "NetworkingReady", "ContainerRuntimeReady"),
        values=("False",),
        fault_class=FaultClass.MAINTENANCE,
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
    FaultSource(
        "gke-termination",
        SignalKind.TAINT,
        ("cloud.google.com/impending-node-termination",),
        fault_class=FaultClass.PREEMPTION,
        grace_s=GKE_GRACE_S,
    ),
    FaultSource(
        "aws-spot",
        SignalKind.TAINT,
        ("aws-node-termination-handler/spot-itn",),
        fault_class=FaultClass.PREEMPTION,
        grace_s=AWS_GRACE_S,
    ),
    FaultSource(  # AWS may take the spot machine soon, at an unknown time
        "aws-rebalance",
        SignalKind.TAINT,
        ("aws-node-termination-handler/rebalance-recommendation",),
        fault_class=FaultClass.PREEMPTION,
    ),
    FaultSource(
        "aws-maintenance",
        SignalKind.TAINT,
        (
            "aws-node-termination-handler/scheduled-maintenance",
            "aws-node-termination-handler/asg-lifecycle-termination",
        ),
        fault_class=FaultClass.MAINTENANCE,
    ),
    FaultSource(
        "autoscaler",
        SignalKind.TAINT,
        ("ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"),
        fault_class=FaultClass.MAINTENANCE,
    ),
    FaultSource("cordon", SignalKind.CORDON, fault_class=FaultClass.MAINTENANCE),
    FaultSource(
        "not-ready",
        SignalKind.CONDITION,
        (READY,),
        values=("False", "Unknown"),
        fault_class=FaultClass.MAINTENANCE,
    ),
)
