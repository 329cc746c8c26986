"""The built-in sources. docs/how-to/faults.md names the documentation of each; the chart's values add further sources.

Precedence: 100 is a person's word (the annotations), 20 hardware, 15 why NVSentinel has quarantined a node where that
is not its hardware, 10 a source that knows better than another one that speaks at the same time, 0 everything else. A
row of the values has 50 unless it says otherwise.

Hardware is what says that a device, or the machine, is lost. A kernel or a daemon in trouble is Maintenance: what the
workers have in memory is whole, and can be saved.
"""

from understudy_operator.plan.faults.sources import READY, Polarity, SignalKind, Source
from understudy_operator.plan.faults.xids import FATAL
from understudy_protocol import pod as names
from understudy_protocol.words import FaultClass

BY_HAND = 100
HARDWARE = 20
SAYS_WHY = 15
KNOWS_BETTER = 10
NO_WORD = ("", "false")

#: GKE, Azure and AWS tell 30, 30 and 120 seconds before they take a spot machine; so much of it is a pod's.
GKE_GRACE_S = 15.0
AKS_GRACE_S = 15.0
AWS_GRACE_S = 90.0

BUILT_IN: tuple[Source, ...] = (
    Source(
        "annotation",
        SignalKind.ANNOTATION,
        (names.ANNOTATION_FAULTY,),
        excepted=NO_WORD,
        until=names.ANNOTATION_UNTIL,
        precedence=BY_HAND,
    ),
    Source(
        "annotation-healthy",
        SignalKind.ANNOTATION,
        (names.ANNOTATION_FAULTY,),
        values=("false",),
        polarity=Polarity.HEALTHY,
        precedence=BY_HAND,
    ),
    Source(
        "annotation-maintenance",
        SignalKind.ANNOTATION,
        (names.ANNOTATION_MAINTENANCE,),
        excepted=NO_WORD,
        until=names.ANNOTATION_UNTIL,
        fault_class=FaultClass.MAINTENANCE,
        precedence=BY_HAND,
    ),
    # It quarantines for maintenance of the cloud as well, and where nobody can ask the GPUs: the conditions say so.
    Source("nvsentinel-state", SignalKind.LABEL, ("dgxc.nvidia.com/nvsentinel-state",), precedence=KNOWS_BETTER),
    Source(
        "nvsentinel-maintenance",
        SignalKind.CONDITION,
        ("CSPMaintenance", "GpuDcgmConnectivityFailure"),
        values=("True",),
        fault_class=FaultClass.MAINTENANCE,
        precedence=SAYS_WHY,
    ),
    Source("nvsentinel-gpu", SignalKind.CONDITION, ("Gpu*Watch",), values=("True",), precedence=HARDWARE),
    Source(
        "nvsentinel-xid", SignalKind.CONDITION, ("SysLogsXIDError",), values=("True",), xids=FATAL, precedence=HARDWARE
    ),
    Source(
        "nvsentinel-syslog",
        SignalKind.CONDITION,
        ("SysLogsSXIDError", "SysLogsGPUFallenOff", "NVSwitchFatalError"),
        values=("True",),
        precedence=HARDWARE,
    ),
    Source("gpu-xid", SignalKind.CONDITION, ("*XID*", "*Xid*"), values=("True",), xids=FATAL, precedence=HARDWARE),
    Source(
        "node-problem-detector",
        SignalKind.CONDITION,
        ("CperHardwareErrorFatal",),
        values=("True",),
        precedence=HARDWARE,
    ),
    Source(
        "node-problem-detector-kernel",
        SignalKind.CONDITION,
        ("KernelDeadlock", "XfsShutdown", "ReadonlyFilesystem"),
        values=("True",),
        fault_class=FaultClass.MAINTENANCE,
    ),
    Source(
        "node-problem-detector-software",
        SignalKind.CONDITION,
        ("KubeletUnhealthy", "ContainerRuntimeUnhealthy"),
        values=("True",),
        fault_class=FaultClass.MAINTENANCE,
    ),
    Source(
        "aks-gpu", SignalKind.CONDITION, ("GPUMissing", "NVLinkStatusInactive"), values=("True",), precedence=HARDWARE
    ),
    Source(
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
    Source(
        "aks-spot",
        SignalKind.CONDITION,
        ("PreemptionScheduled",),
        values=("True",),
        fault_class=FaultClass.PREEMPTION,
        grace_s=AKS_GRACE_S,
    ),
    Source(
        "eks-accelerator", SignalKind.CONDITION, ("AcceleratedHardwareReady",), values=("False",), precedence=HARDWARE
    ),
    Source(
        "eks-node",
        SignalKind.CONDITION,
        ("KernelReady", "StorageReady", "NetworkingReady", "ContainerRuntimeReady"),
        values=("False",),
        fault_class=FaultClass.MAINTENANCE,
    ),
    Source(
        "hyperpod",
        SignalKind.LABEL,
        ("sagemaker.amazonaws.com/node-health-status",),
        values=("UnschedulablePendingReplacement", "UnschedulablePendingReboot"),
        precedence=HARDWARE,
    ),
    Source(
        "hyperpod-checks",
        SignalKind.LABEL,
        ("sagemaker.amazonaws.com/node-health-status",),
        values=("Unschedulable",),
        fault_class=FaultClass.MAINTENANCE,
    ),
    Source(
        "gke-maintenance",
        SignalKind.LABEL,
        ("cloud.google.com/active-node-maintenance",),
        values=("ONGOING",),
        fault_class=FaultClass.MAINTENANCE,
        precedence=KNOWS_BETTER,  # the taint of gke-termination is there as well
    ),
    Source(
        "gke-termination",
        SignalKind.TAINT,
        ("cloud.google.com/impending-node-termination",),
        fault_class=FaultClass.PREEMPTION,
        grace_s=GKE_GRACE_S,
    ),
    Source(
        "aws-spot",
        SignalKind.TAINT,
        ("aws-node-termination-handler/spot-itn",),
        fault_class=FaultClass.PREEMPTION,
        grace_s=AWS_GRACE_S,
    ),
    Source(  # that a spot machine may be taken soon: nobody says when
        "aws-rebalance",
        SignalKind.TAINT,
        ("aws-node-termination-handler/rebalance-recommendation",),
        fault_class=FaultClass.PREEMPTION,
    ),
    Source(
        "aws-maintenance",
        SignalKind.TAINT,
        (
            "aws-node-termination-handler/scheduled-maintenance",
            "aws-node-termination-handler/asg-lifecycle-termination",
        ),
        fault_class=FaultClass.MAINTENANCE,
    ),
    Source(
        "autoscaler",
        SignalKind.TAINT,
        ("ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"),
        fault_class=FaultClass.MAINTENANCE,
    ),
    Source("cordon", SignalKind.CORDON, fault_class=FaultClass.MAINTENANCE),
    Source(
        "not-ready",
        SignalKind.CONDITION,
        (READY,),
        values=("False", "Unknown"),
        fault_class=FaultClass.MAINTENANCE,
    ),
)
