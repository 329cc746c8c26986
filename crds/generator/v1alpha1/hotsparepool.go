package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Spare pods that the jobs of a namespace share. A TrainingJob names its pool in
// spares.pool, and claims a spare when it has lost more pods than its own spares can
// replace. The pool then creates another spare.
//
// Pods are named <pool>-<5 characters>.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=hotsparepools,singular=hotsparepool,shortName=hsp,categories=all
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=`.status.desired`,description="Unclaimed spares that the pool keeps"
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.status.ready`,description="Spares that are ready"
// +kubebuilder:printcolumn:name="Claimed",type=integer,JSONPath=`.status.claimed`,description="Spares that jobs have claimed and still use"
// +kubebuilder:printcolumn:name="Available",type=integer,JSONPath=`.status.available`,description="Spares that a job could claim now"
// +kubebuilder:printcolumn:name="Oldest",type=date,JSONPath=`.status.oldestPodTime`,description="Age of the oldest spare"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 57",fieldPath=".metadata.name",message="metadata.name must be a DNS label of at most 57 characters, because pods are named <pool>-<5 characters>: use lower-case letters, digits and '-', start with a letter, and leave out dots"
type HotSparePool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Which spares to keep, and how many.
	Spec HotSparePoolSpec `json:"spec"`

	// The state that the operator last observed. Only the operator writes it.
	// +optional
	Status HotSparePoolStatus `json:"status,omitempty"`
}

// Which spares to keep, and how many.
//
// +kubebuilder:validation:XValidation:rule="has(self.replicas) != has(self.autoSize)",fieldPath=".replicas",message="exactly one of replicas and autoSize must be set: set replicas to a number, or autoSize to {} to have the number computed"
// +kubebuilder:validation:XValidation:rule="has(self.launcher) || !has(self.template.spec.restartPolicy) || self.template.spec.restartPolicy == 'Always'",fieldPath=".template.spec.restartPolicy",message="restartPolicy must be Always or unset in a pool's template: a spare runs until it is claimed"
// +kubebuilder:validation:XValidation:rule="!has(self.launcher) || (has(self.launcher.container) ? self.template.spec.containers.all(c, c.name != self.launcher.container || (!has(c.restartPolicyRules) && (!has(c.restartPolicy) || c.restartPolicy == 'Never'))) : (size(self.template.spec.containers) == 0 || (!has(self.template.spec.containers[0].restartPolicyRules) && (!has(self.template.spec.containers[0].restartPolicy) || self.template.spec.containers[0].restartPolicy == 'Never'))))",fieldPath=".template.spec.containers",message="restartPolicy and restartPolicyRules cannot be set on the container of the launcher, which restarts workers itself: remove them"
// +kubebuilder:validation:XValidation:rule="!has(self.launcher) || !has(self.launcher.container) || self.template.spec.containers.exists(c, c.name == self.launcher.container)",fieldPath=".launcher.container",message="launcher.container must name a container of template.spec.containers; leave it out to use the first"
// +kubebuilder:validation:XValidation:rule="!has(self.launcher) || (has(self.launcher.container) ? self.template.spec.containers.all(c, c.name != self.launcher.container || (has(c.command) && size(c.command) > 0)) : (size(self.template.spec.containers) > 0 && has(self.template.spec.containers[0].command) && size(self.template.spec.containers[0].command) > 0))",fieldPath=".template.spec.containers",message="the trainer container needs a command, because the launcher imports the modules with its Python: set it to the command of the jobs, such as [python3, train.py], in the container that launcher.container names (default: the first)"
type HotSparePoolSpec struct {
	// Number of unclaimed spares. A claimed spare is replaced when the job has its place.
	// May be changed at any time, also by kubectl scale.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 1000",message="replicas must be 0 or more, and at most 1000: the number of spares that wait"
	Replicas *int32 `json:"replicas,omitempty"`

	// Computes the number of spares: the smallest number that is enough on 99 of 100
	// days. May be changed at any time.
	// +optional
	AutoSize *AutoSize `json:"autoSize,omitempty"`

	// Template of the spares. It has to request the resources of a job's pod, so that the
	// pod fits in the place of a spare. A change replaces the spares one after the other.
	// May be changed at any time.
	Template corev1.PodTemplateSpec `json:"template"`

	// Makes the spares warm, as those of a job: with a sidecar, and with a launcher that
	// has imported the modules of the workers. A job with a matching pod template takes
	// such a spare as it is (a Warm claim), without starting a pod. A change replaces the
	// spares one after the other. If unset, spares only reserve resources.
	// +optional
	Launcher *PoolLauncher `json:"launcher,omitempty"`

	// Name of a node label, such as topology.kubernetes.io/zone or one of your racks:
	// spares are spread over its values, as far as nodes have room. Default: only the
	// template decides where they are scheduled.
	// +optional
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')",message="topologyKey must be the name of a node label, such as topology.kubernetes.io/zone: set it to a label that your nodes have, or leave it out"
	TopologyKey string `json:"topologyKey,omitempty"`
}

// Settings of warm spares, as in the jobs that claim them.
type PoolLauncher struct {
	// Name of the trainer container. Default: the first container.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Container string `json:"container,omitempty"`

	// Workers in each pod, mostly one for each GPU. Default: 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 128",message="launcher.nprocPerNode must be 1 to 128: set it to the number of workers in each pod of the jobs"
	NprocPerNode int32 `json:"nprocPerNode,omitempty"`

	// Whether each spare runs a fork server: a process that imports torch once and forks
	// the workers. Default: true.
	// +optional
	// +kubebuilder:default=true
	ForkServer *bool `json:"forkServer,omitempty"`

	// Modules that the fork server imports. Default: torch, torch.distributed, torch._dynamo
	// and numpy.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=200
	// +kubebuilder:validation:XValidation:rule="self.all(m, m.matches('^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*$'))",message="launcher.preload must be names of Python modules, such as torch.distributed: remove all other words"
	Preload []string `json:"preload,omitempty"`

	// A command that each spare runs once, before it is ready.
	// +optional
	Warmup *PoolWarmup `json:"warmup,omitempty"`

	// Shared memory of the trainer container. It must equal launcher.sharedMemory of the
	// jobs. If unset, no volume is added.
	// +optional
	SharedMemory *SharedMemory `json:"sharedMemory,omitempty"`
}

// A command that each spare of a pool runs once before it is ready, for example to fill
// caches.
type PoolWarmup struct {
	// The command and its arguments. It runs in the trainer container when torch is
	// imported. A failure is logged and has no other effect. A spare that is not ready
	// after ten minutes is replaced.
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=8192
	// +kubebuilder:validation:XValidation:rule="size(self) > 0 && size(self[0]) > 0",message="launcher.warmup.command must be the words of a command, such as [python3, warmup.py]: name a program, or leave out warmup"
	Command []string `json:"command"`
}

// How the number of spares is computed.
//
// +kubebuilder:validation:XValidation:rule="self.minReplicas <= self.maxReplicas",fieldPath=".minReplicas",message="autoSize.minReplicas must be at most autoSize.maxReplicas: lower it, or raise autoSize.maxReplicas"
type AutoSize struct {
	// Number of nodes that the spares are for. Default: the nodes on which pods of all
	// jobs with this pool run.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 1000000",message="autoSize.nodes must be 1 or more, and at most 1000000: the number of nodes that the spares are for, or leave it out to have them counted"
	Nodes *int32 `json:"nodes,omitempty"`

	// Probability that a node fails within a day, such as 0.0012. Default: 0.0012, and
	// the measured value when the jobs with this pool have run for enough node-days.
	// +optional
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^0?[.][0-9]*[1-9][0-9]*$')",message="autoSize.failuresPerNodeDay must be a number above 0 and below 1, written as in '0.0012': set it to the probability that a node fails within a day, or leave it out"
	FailuresPerNodeDay string `json:"failuresPerNodeDay,omitempty"`

	// The smallest number of spares. Default: 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 1000",message="autoSize.minReplicas must be 0 or more, and at most 1000: the smallest number of spares"
	MinReplicas *int32 `json:"minReplicas,omitempty"`

	// The largest number of spares. Default: 16.
	// +optional
	// +kubebuilder:default=16
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 1000",message="autoSize.maxReplicas must be 0 or more, and at most 1000: the largest number of spares"
	MaxReplicas *int32 `json:"maxReplicas,omitempty"`
}

// The state of a pool that the operator last observed.
type HotSparePoolStatus struct {
	// The generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions of the pool, with the reason and the time of the last change: Ready,
	// Rolling, Blocked.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Number of unclaimed spares that the pool keeps.
	// +optional
	Desired int32 `json:"desired"`

	// Unclaimed spares that exist, ready or not.
	// +optional
	Replicas int32 `json:"replicas"`

	// Spares that are ready.
	// +optional
	Ready int32 `json:"ready"`

	// Spares that jobs have claimed: a pod of the job will take the place of the spare,
	// or has taken it and still runs.
	// +optional
	Claimed int32 `json:"claimed"`

	// Spares that a job could claim now: ready, on a node that is ready and not faulty.
	// +optional
	Available int32 `json:"available"`

	// Spares with the newest template.
	// +optional
	Updated int32 `json:"updated"`

	// When the oldest spare was created.
	// +optional
	OldestPodTime *metav1.Time `json:"oldestPodTime,omitempty"`

	// Label selector of the spares, for the scale subresource.
	// +optional
	Selector string `json:"selector,omitempty"`

	// How the number of spares was computed, if spec.autoSize is set.
	// +optional
	AutoSize *AutoSizeStatus `json:"autoSize,omitempty"`
}

// How the number of spares was computed.
type AutoSizeStatus struct {
	// Nodes that the spares are for.
	// +optional
	Nodes int32 `json:"nodes"`

	// The probability that a node fails within a day, as used.
	// +optional
	FailuresPerNodeDay string `json:"failuresPerNodeDay,omitempty"`

	// Source of that probability: Spec, Default or History.
	// +optional
	Source string `json:"source,omitempty"`

	// Node-days that the jobs have reported. Older ones have less weight.
	// +optional
	NodeDays string `json:"nodeDays,omitempty"`

	// Failures of nodes within those days.
	// +optional
	Failures string `json:"failures,omitempty"`

	// The time until which node-days and failures are counted.
	// +optional
	CountedUntil *metav1.MicroTime `json:"countedUntil,omitempty"`

	// The time since which fewer spares would be enough.
	// +optional
	SurplusSince *metav1.MicroTime `json:"surplusSince,omitempty"`
}
