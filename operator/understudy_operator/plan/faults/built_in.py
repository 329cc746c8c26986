"""The built-in sources. docs/how-to/faults.md names the documentation of each; the chart's values add further sources.

Precedence: 100 is a person's word (the annotations), 20 hardware, 15 why NVSentinel has quarantined a node where that
is not its hardware, 10 a source that knows better than another one that speaks at the same time, 0 everything else. A
row of the values has 50 unless it says otherwise.

Hardware is what says that a device, or the machine, is lost. A kernel or a daemon in trouble is Maintenance: what the
workers have in memory is whole, and can be saved.
"""

from understudy_operator.plan.faults.sources import READY, FaultSource, Polarity, SignalKind
from understudy_operator.plan.faults.xids import FATAL
from understudy_protocol import pod as names
from understudy_protocol.enums import FaultClass

MANUAL_PRECEDENCE = 100
HARDWARE_PRECEDENCE = 20
EXPLAINED_PRECEDENCE = 15
STATE_PRECEDENCE = 10
UNSET_VALUES = ("", "false")

#: GKE, Azure and AWS tell 30, 30 and 120 seconds before they take a spot machine; so much of it is a pod's.
GKE_GRACE_S = 15.0
AKS_GRACE_S = 15.0
AWS_GRACE_S = 90.0

BUILT_IN: tuple[FaultSource, ...] = (
    FaultSource(
        "annotation",
        SignalKind.ANNOTATION,
        (names.ANNOTATION_FAULTY,),
        excepted=UNSET_VALUES,
        until=names.ANNOTATION_UNTIL,
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
        until=names.ANNOTATION_UNTIL,
        fault_class=FaultClass.MAINTENANCE,
        precedence=MANUAL_PRECEDENCE,
    ),
    # It quarantines for maintenance of the cloud as well, and where nobody can ask the GPUs: the conditions say so.
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
        precedence=STATE_PRECEDENCE,  # the taint of gke-termination is there as well
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
    FaultSource(  # that a spot machine may be taken soon: nobody says when
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
