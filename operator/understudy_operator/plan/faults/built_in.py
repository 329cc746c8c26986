"""The table's own rows. docs/faults.md says of each where its source is described; the chart's values add to them.

Precedence: 100 is a person's word (the annotations), 20 hardware, 10 a source that knows better than another one that
speaks at the same time, 0 everything else. A row of the values has 50 unless it says otherwise.
"""

from understudy_operator.plan.faults.sources import READY, Polarity, SignalKind, Source
from understudy_operator.plan.faults.xids import FATAL
from understudy_protocol import pod as names
from understudy_protocol.words import FaultClass

BY_HAND = 100
HARDWARE = 20
KNOWS_BETTER = 10
NO_WORD = ("", "false")

#: GKE and AWS tell 30 and 120 seconds before they take a spot machine; so much of it is a pod's.
GKE_GRACE_S = 15.0
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
    Source("nvsentinel-state", SignalKind.LABEL, ("dgxc.nvidia.com/nvsentinel-state",), precedence=HARDWARE),
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
        ("CperHardwareErrorFatal", "KernelDeadlock", "XfsShutdown", "ReadonlyFilesystem"),
        values=("True",),
        precedence=HARDWARE,
    ),
    Source(
        "node-problem-detector-software",
        SignalKind.CONDITION,
        ("KubeletUnhealthy", "ContainerRuntimeUnhealthy"),
        values=("True",),
        fault_class=FaultClass.MAINTENANCE,
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
    Source(
        "aws-maintenance",
        SignalKind.TAINT,
        ("aws-node-termination-handler/scheduled-maintenance",),
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
