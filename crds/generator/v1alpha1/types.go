// Package v1alpha1 describes the TrainingJob as Go types, because controller-gen
// reads Go: crds/trainingjobs.yaml is generated from this file (see generate.py).
//
// Rules of this file:
//   - Only what this version does is here. An unknown field is refused.
//   - A comment on a type or field is what `kubectl explain` shows.
//   - A limit that a user can meet is a CEL rule whose message names the field
//     and the mend. It stands where the error should point to.
//   - A list or string that a CEL rule walks through has a maximum, or the API
//     server refuses the rule for its cost.
//
// +groupName=understudy.dev
package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A training job that keeps running through faults: a warm spare takes the
// ranks of a lost pod, and the workers of all other pods restart in place.
//
// Pods are named <job>-<replicatedJob>-<jobIndex>-<podIndex>-<5 characters>: of
// 63 characters, 19 are kept for what follows the two names (indexes of up to
// five digits each).
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=trainingjobs,singular=trainingjob,shortName=tj,categories=all
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`,description="What the job is doing"
// +kubebuilder:printcolumn:name="Active",type=integer,JSONPath=`.status.members.active`,description="Members that hold ranks"
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=`.status.members.desired`,description="Members that the job needs"
// +kubebuilder:printcolumn:name="Spares",type=integer,JSONPath=`.status.spares.ready`,description="Spares that wait, ready to take ranks"
// +kubebuilder:printcolumn:name="Round",type=integer,JSONPath=`.status.round`,description="The rendezvous that the workers are in, from 0"
// +kubebuilder:printcolumn:name="Restarts",type=integer,JSONPath=`.status.restarts`,description="Restarts of the workers: recoveries of all strategies"
// +kubebuilder:printcolumn:name="Step",type=integer,JSONPath=`.status.progress.step`,priority=1,description="The newest training step"
// +kubebuilder:printcolumn:name="Coordinator",type=string,JSONPath=`.status.coordinator.podName`,priority=1,description="The pod whose sidecar is the coordinator"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",fieldPath=".metadata.name",message="metadata.name must be a DNS label, because Services and hostnames are named after it: use lower-case letters, digits and '-', start with a letter, and leave out dots"
// +kubebuilder:validation:XValidation:rule="self.spec.replicatedJobs.all(j, size(self.metadata.name) + size(j.name) <= 44)",fieldPath=".metadata.name",message="metadata.name is too long: pods are named <job>-<replicatedJob>-<jobIndex>-<podIndex>-<5 characters>, in at most 63; shorten metadata.name or replicatedJobs[].name to at most 44 characters together"
type TrainingJob struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What to run, and how to recover it.
	Spec TrainingJobSpec `json:"spec"`

	// What the operator last saw. Written by the operator only.
	// +optional
	Status TrainingJobStatus `json:"status,omitempty"`
}

// What to run, and how to recover it.
//
// +kubebuilder:validation:XValidation:rule="has(self.launcher)",fieldPath=".launcher",message="add launcher: {nprocPerNode: <workers per pod>}: the launcher starts the workers and restarts them after a fault; this version runs no job without it"
// +kubebuilder:validation:XValidation:rule="!has(self.launcher) || !has(self.launcher.container) || self.replicatedJobs.all(j, j.template.spec.template.spec.containers.exists(c, c.name == self.launcher.container))",fieldPath=".launcher.container",message="launcher.container must name a container of replicatedJobs[].template.spec.template.spec.containers; leave it out to use the first"
// +kubebuilder:validation:XValidation:rule="self.replicatedJobs.all(j, has(self.launcher) && has(self.launcher.container) ? j.template.spec.template.spec.containers.all(c, c.name != self.launcher.container || (has(c.command) && size(c.command) > 0)) : (size(j.template.spec.template.spec.containers) > 0 && has(j.template.spec.template.spec.containers[0].command) && size(j.template.spec.template.spec.containers[0].command) > 0))",fieldPath=".replicatedJobs",message="the trainer container needs a command: the launcher starts it; an image's ENTRYPOINT cannot be wrapped. Set command in the container that launcher.container names (default: the first)"
// +kubebuilder:validation:XValidation:rule="!has(self.elastic) || self.replicatedJobs.all(j, self.elastic.minReplicas <= j.replicas * j.template.spec.parallelism)",fieldPath=".elastic.minReplicas",message="elastic.minReplicas must be at most the pods of the job, replicas times parallelism of replicatedJobs: lower it, or leave out elastic if the job is never to shrink"
// +kubebuilder:validation:XValidation:rule="has(self.elastic) == has(oldSelf.elastic) && (!has(self.elastic) || self.elastic == oldSelf.elastic)",fieldPath=".elastic",message="elastic is immutable, because pods keep the one that they were created with: delete the TrainingJob and create it anew"
// +kubebuilder:validation:XValidation:rule="!has(self.checkpoint.replicaGroups) || size(self.replicatedJobs) != 1 || self.checkpoint.replicaGroups.all(g, g.all(r, r >= 0 && r < self.replicatedJobs[0].replicas * self.replicatedJobs[0].template.spec.parallelism))",fieldPath=".checkpoint.replicaGroups",message="checkpoint.replicaGroups must name pods by their group rank: each is 0 or more, and below the pods of the job, replicas times parallelism of replicatedJobs"
// +kubebuilder:validation:XValidation:rule="has(self.faults) == has(oldSelf.faults) && (!has(self.faults) || self.faults == oldSelf.faults)",fieldPath=".faults",message="faults is immutable, because pods keep the one that they were created with: delete the TrainingJob and create it anew"
// +kubebuilder:validation:XValidation:rule="!has(self.launcher) || !has(self.launcher.mode) || self.launcher.mode != 'Torchrun' || !has(self.spares) || !has(self.spares.warmup)",fieldPath=".spares.warmup",message="spares.warmup has no effect with launcher.mode Torchrun, which starts nothing but torchrun: remove it, or set mode to Wrap"
type TrainingJobSpec struct {
	// The Jobs whose pods train, as in JobSet. This version takes exactly one
	// entry. It cannot be changed after creation.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="size(self) == 1",message="replicatedJobs must have exactly one entry: several replicatedJobs are not supported by this version: keep the one whose pods form the world"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="replicatedJobs is immutable: delete the TrainingJob and create it anew"
	ReplicatedJobs []ReplicatedJob `json:"replicatedJobs"`

	// How the launcher starts the workers in each pod. It cannot be changed after
	// creation.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="launcher is immutable: delete the TrainingJob and create it anew"
	Launcher *Launcher `json:"launcher,omitempty"`

	// Warm pods that wait to take a lost pod's ranks. May be changed at any time.
	// +optional
	// +kubebuilder:default={}
	Spares Spares `json:"spares,omitempty"`

	// How the job recovers, and how much of that is tried before it fails. May be
	// changed at any time, fenceTimeout aside; a change counts for the pods that are
	// created after it.
	// +optional
	// +kubebuilder:default={}
	Recovery Recovery `json:"recovery,omitempty"`

	// What a pod does about a checkpoint when it is asked to end. It cannot be changed
	// after creation.
	// +optional
	// +kubebuilder:default={}
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="checkpoint is immutable, because pods keep the one that they were created with: delete the TrainingJob and create it anew"
	Checkpoint Checkpoint `json:"checkpoint,omitempty"`

	// What counts as a fault beside processes, pods and nodes that end. It cannot be
	// changed after creation.
	// +optional
	Faults *Faults `json:"faults,omitempty"`

	// Lets the job train with less pods than it declares when no spare takes a lost
	// pod's ranks. Left out, the job waits for a pod instead. It cannot be changed
	// after creation.
	// +optional
	Elastic *Elastic `json:"elastic,omitempty"`
}

// A Job template and the number of Jobs to make of it.
type ReplicatedJob struct {
	// Name of the entry. It is part of the pods' names.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="replicatedJobs[].name must be a DNS label, because it is part of the pods' names: use lower-case letters, digits and '-'"
	Name string `json:"name"`

	// Number of Jobs made of the template. The world has replicas times
	// parallelism pods. Default: 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:XValidation:rule="self >= 1",message="replicas must be at least 1: set it to the number of Jobs whose pods train, or delete the TrainingJob to stop it"
	// +kubebuilder:validation:XValidation:rule="self <= 100000",message="replicas must be at most 100000: a pod's name has room for indexes of five digits; set parallelism to the pods of each Job"
	Replicas int32 `json:"replicas,omitempty"`

	// The Job's template.
	Template JobTemplate `json:"template"`
}

// Template of a Job. The operator creates its pods directly, as a Job controller
// would.
type JobTemplate struct {
	// Labels and annotations that the Job's pods get too.
	// +optional
	Metadata TemplateMetadata `json:"metadata,omitempty"`

	// The pods of the Job.
	Spec JobSpec `json:"spec"`
}

// Labels and annotations of what is made of a template.
type TemplateMetadata struct {
	// Labels to set.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`

	// Annotations to set.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// The pods of a Job.
//
// +kubebuilder:validation:XValidation:rule="!has(self.completions) || self.completions == self.parallelism",fieldPath=".completions",message="completions must equal parallelism, because all pods of a training run at once: set both to the same number, or leave completions out"
type JobSpec struct {
	// Number of pods of each Job. All run at once. Default: 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:XValidation:rule="self >= 1",message="parallelism must be at least 1: set it to the number of pods of each Job"
	// +kubebuilder:validation:XValidation:rule="self <= 100000",message="parallelism must be at most 100000: a pod's name has room for indexes of five digits; spread the pods over more replicas"
	Parallelism int32 `json:"parallelism,omitempty"`

	// Number of pods that must succeed. Must equal parallelism where it is set.
	// +optional
	Completions *int32 `json:"completions,omitempty"`

	// Each pod has an index. Only Indexed is possible.
	// +optional
	// +kubebuilder:default=Indexed
	// +kubebuilder:validation:Enum=Indexed
	CompletionMode string `json:"completionMode,omitempty"`

	// The pod's template.
	Template PodTemplate `json:"template"`
}

// Template of a pod.
type PodTemplate struct {
	// Labels and annotations of the pods.
	// +optional
	Metadata TemplateMetadata `json:"metadata,omitempty"`

	// The pod's spec, as in a Pod: see kubectl explain pod.spec. Pods always run
	// with restartPolicy Never: the launcher restarts workers.
	// +kubebuilder:validation:XValidation:rule="!has(self.restartPolicy) || self.restartPolicy in ['Never', 'OnFailure']",fieldPath=".restartPolicy",message="restartPolicy must be Never or OnFailure, or be left out: pods always run with Never, and the launcher restarts workers"
	// +kubebuilder:validation:XValidation:rule="!has(self.hostNetwork) || !self.hostNetwork",fieldPath=".hostNetwork",message="hostNetwork must be false or be left out: the sidecars listen on fixed ports, which two pods of a node cannot share, and which the node may use itself; for RDMA, give the pods a secondary network or the devices of a device plugin instead"
	Spec corev1.PodSpec `json:"spec"`
}

// How the launcher starts the workers. The launcher is the first process of the
// trainer container: it starts, stops and watches the workers of its pod.
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || self.mode != 'Torchrun' || !has(self.preload)",fieldPath=".preload",message="launcher.preload has no effect with mode Torchrun, whose workers are fresh processes: remove it, or set mode to Wrap"
type Launcher struct {
	// What the trainer container's command is. Wrap: the training itself, which the
	// launcher runs once for each worker. Torchrun: torchrun, which runs as it is, and
	// takes its rounds from Understudy. Default: Wrap.
	// +optional
	// +kubebuilder:default=Wrap
	// +kubebuilder:validation:XValidation:rule="self in ['Wrap', 'Torchrun']",message="launcher.mode must be Wrap or Torchrun: set it to Torchrun where the trainer container's command is torchrun, else to Wrap, or leave it out"
	Mode string `json:"mode,omitempty"`

	// Workers in each pod, mostly one for each GPU. Default: 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 128",message="launcher.nprocPerNode must be 1 to 128: set it to the number of workers in each pod, mostly its number of GPUs"
	NprocPerNode int32 `json:"nprocPerNode,omitempty"`

	// Name of the trainer container, whose command the workers run. Default: the
	// first container.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Container string `json:"container,omitempty"`

	// Whether workers are forked from a process that has imported torch already, the
	// zygote, so that a restart costs no imports. A command that is not Python starts
	// as fresh processes all the same. Set it to false for a script that a fork does
	// not suit. Default: true.
	// +optional
	// +kubebuilder:default=true
	Zygote *bool `json:"zygote,omitempty"`

	// Modules that the zygote imports before the first round. What is not installed
	// is left out. They may start no threads, and touch no GPU. Default: torch,
	// torch.distributed, torch._dynamo and numpy.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=200
	// +kubebuilder:validation:XValidation:rule="self.all(m, m.matches('^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*$'))",message="launcher.preload must be names of Python modules, such as torch.distributed: remove what is not one"
	Preload []string `json:"preload,omitempty"`

	// Whether each line that a worker writes appears in the container's log with its
	// global rank before it: [rank 3]. Set it to false where something reads the
	// lines as they are, such as JSON. With mode Torchrun lines are as torchrun writes
	// them, for which it has an option, --tee. Default: true.
	// +optional
	// +kubebuilder:default=true
	LogPrefix *bool `json:"logPrefix,omitempty"`
}

// Warm pods: their trainer container runs, but no worker yet. At a fault a spare
// takes the lost pod's ranks without a pod start.
type Spares struct {
	// Number of spares to keep. Default: 0.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 1000",message="spares.replicas must be 0 or more, and at most 1000: the number of warm pods that wait to take a lost pod's ranks"
	Replicas int32 `json:"replicas,omitempty"`

	// Name of a node label, such as topology.kubernetes.io/zone or one of your racks:
	// a lost pod's ranks go to a spare on a node with the same value of it, where one
	// waits. It does not decide where spares are scheduled: the pod template does.
	// Default: any spare will do.
	// +optional
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')",message="spares.topologyKey must be the name of a node label, such as topology.kubernetes.io/zone: set it to a label that your nodes have, or leave it out"
	TopologyKey string `json:"topologyKey,omitempty"`

	// A command that each spare runs once, before it may be needed.
	// +optional
	Warmup *Warmup `json:"warmup,omitempty"`
}

// A command that each spare runs once, before it may be needed: to fill caches, of
// compiled kernels or of files, that a worker there then finds.
type Warmup struct {
	// The command and its arguments. It runs in the trainer container, with what the
	// workers have in their environment but their ranks, once torch is imported. A
	// round that needs the spare ends it at once, and its failure is logged and means
	// nothing else. A change counts for the spares that are made after it.
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=8192
	// +kubebuilder:validation:XValidation:rule="size(self) > 0 && size(self[0]) > 0",message="spares.warmup.command must be the words of a command, such as [python3, warmup.py]: name a program, or leave out warmup"
	Command []string `json:"command"`
}

// What a pod does about a checkpoint when it is asked to end.
type Checkpoint struct {
	// Whether workers get SIGTERM and may save within the grace period. Auto: unless
	// the pod's node is faulty (its annotation understudy.dev/faulty says so): there
	// they are killed at once, because a save on dying hardware hangs, or breaks what
	// it writes. Always and Never: whatever the node is. Default: Auto.
	// +optional
	// +kubebuilder:default=Auto
	// +kubebuilder:validation:XValidation:rule="self in ['Auto', 'Always', 'Never']",message="checkpoint.onSigterm must be Auto, Always or Never: set it to one of them, or leave it out"
	OnSigterm string `json:"onSigterm,omitempty"`

	// A file on the nodes, such as /run/nologin: a node on which it exists is faulty
	// to this job, for as long as it exists. The folder that it is in is mounted
	// read-only into the sidecar of every pod, by a hostPath volume, which namespaces
	// with the pod security standards baseline and restricted refuse. Default: none.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.matches('^(/[^/]+){2,}$') && !self.matches('/[.][.]?(/|$)')",message="checkpoint.nologinPath must be an absolute path of a file in a folder, such as /run/nologin, without . and ..: the folder is mounted into the sidecar, and may not be the root of the node"
	NologinPath string `json:"nologinPath,omitempty"`

	// Which pods hold the same shards of what is saved, by group rank: [[0, 1], [2, 3]]
	// says that pods 0 and 1 hold one part, pods 2 and 3 another. When a pod leaves a
	// faulty node, the others may then save without it, as long as each group that it
	// is in has another pod on a node that is well; else nobody tries. A pod in no group
	// holds shards that nobody else has. Left out: nobody saves when a pod leaves a
	// faulty node.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	ReplicaGroups []ReplicaGroup `json:"replicaGroups,omitempty"`
}

// Group ranks of pods that hold the same shards.
//
// +listType=set
// +kubebuilder:validation:MinItems=1
// +kubebuilder:validation:MaxItems=256
type ReplicaGroup []int32

// What counts as a fault beside processes, pods and nodes that end.
type Faults struct {
	// When a training hangs. Left out, it never does.
	// +optional
	Hang *Hang `json:"hang,omitempty"`
}

// When a training hangs.
type Hang struct {
	// A worker hangs when it has called understudy_torch.step() in this round, and then
	// has not for so long: a duration such as 90s, 10m or 1h. Its pod's log gets the
	// Python stacks of all its workers, the slowest rank is named, and the job recovers
	// as from a worker that fails. Set it to well above the longest time between two
	// steps, saves and evaluations included: what takes longer without a step() counts
	// as a hang. That is why it is off unless it is set.
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && self.matches('[1-9]')",message="faults.hang.stepTimeout must be a duration above zero in whole hours, minutes and seconds, such as 90s, 10m or 1h: longer than any time between two calls of step()"
	StepTimeout string `json:"stepTimeout"`
}

// Lets the job train with less pods than it declares.
type Elastic struct {
	// The least number of pods that the job goes on with: it shrinks to those that
	// are left when ranks have been vacant for recovery.spareTimeout and no spare
	// waits, and it grows back at the next round for which there are more. Pods are
	// counted, not workers: each has launcher.nprocPerNode of them.
	// +kubebuilder:validation:XValidation:rule="self >= 1",message="elastic.minReplicas must be at least 1: set it to the least number of pods that the training can go on with, or leave out elastic if the job is never to shrink"
	MinReplicas int32 `json:"minReplicas"`
}

// How the job recovers.
type Recovery struct {
	// Restarts of the workers in place, which keep every pod.
	// +optional
	// +kubebuilder:default={}
	InPlace InPlaceRecovery `json:"inPlace,omitempty"`

	// How long rounds that fail right at their start wait for each other.
	// +optional
	// +kubebuilder:default={}
	Backoff Backoff `json:"backoff,omitempty"`

	// How long the vacant ranks of a job with elastic wait for a spare, or for a new
	// pod, before the job shrinks: a duration such as 30s, 5m or 1h30m. 0s: it shrinks
	// at once. A job without elastic waits for as long as it takes. Default: 30s.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && self.matches('[0-9]')",message="recovery.spareTimeout must be a duration in whole hours, minutes and seconds, such as 0s, 30s or 1h30m: how long vacant ranks of an elastic job wait for a spare"
	SpareTimeout string `json:"spareTimeout,omitempty"`

	// After how long without a coordinator a pod ends its own workers, because others
	// may have taken its ranks: a duration of at least 10s, such as 30s or 2m. After
	// twice that time the operator appoints another coordinator where the pods cannot
	// elect one. Off: a pod never does, and the operator waits for proof that the
	// missing pods have ended (their kubelet says so, their node is deleted, or has
	// the taint node.kubernetes.io/out-of-service). It cannot be changed after
	// creation. Default: 30s.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self == 'Off' || (self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && self.matches('[0-9]') && duration(self) >= duration('10s'))",message="recovery.fenceTimeout must be Off, or a duration of at least 10s in whole hours, minutes and seconds, such as 30s or 2m: after so long without a coordinator a pod ends its workers"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="recovery.fenceTimeout is immutable, because pods keep the one that they were created with: delete the TrainingJob and create it anew"
	FenceTimeout string `json:"fenceTimeout,omitempty"`
}

// Restarts in place: all workers restart, and every pod stays.
type InPlaceRecovery struct {
	// Restarts for faults of workers that are allowed within the window. When they
	// are spent, the pod of the next fault is replaced, by a spare if there is one,
	// and the one after that fails the job. Lost pods and nodes, and pods that are
	// asked to end, cost none. Default: 10.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:XValidation:rule="self >= 0",message="recovery.inPlace.maxRestarts must be 0 or more: the number of restarts in place that are allowed within recovery.inPlace.window"
	MaxRestarts int32 `json:"maxRestarts,omitempty"`

	// Restarts in place that the workers of one pod may cost within the window. At
	// their next fault the pod is replaced: its ranks go to a spare, or to a new pod.
	// A rank that fails on the other pod as well is at fault itself: then only
	// maxRestarts counts. 0: the pod is replaced at its first fault. Default: 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:XValidation:rule="self >= 0",message="recovery.inPlace.maxRestartsPerPod must be 0 or more: the number of restarts in place that the workers of one pod may cost within recovery.inPlace.window before the pod is replaced"
	MaxRestartsPerPod int32 `json:"maxRestartsPerPod,omitempty"`

	// How long a restart counts, such as 90s, 30m or 1h30m. Default: 1h.
	// +optional
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && self.matches('[1-9]')",message="recovery.inPlace.window must be a duration above zero in whole hours, minutes and seconds, such as 1h, 30m or 1h30m: restarts in place older than this no longer count"
	Window string `json:"window,omitempty"`
}

// How long rounds that fail right at their start wait for each other.
type Backoff struct {
	// When a worker fails before its round has stepped (where the script reports no
	// steps: within a minute), the next round starts after 1s, and after twice as long
	// each further time, up to this: a duration such as 30s or 5m. 0s: always at
	// once. A round that has stepped begins anew, and a pod's or a node's loss never
	// waits. Default: 30s.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && self.matches('[0-9]')",message="recovery.backoff.max must be a duration in whole hours, minutes and seconds, such as 0s, 30s or 5m: the longest pause between rounds that fail right at their start"
	Max string `json:"max,omitempty"`
}

// What the operator last saw. The fields that JobSet has too keep its names and
// types.
type TrainingJobStatus struct {
	// The newest spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// What holds for the job, with the reason and the time of its last change.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// What the job is doing.
	// +optional
	Phase Phase `json:"phase,omitempty"`

	// How the job ended: Completed or Failed. Empty before.
	// +optional
	TerminalState string `json:"terminalState,omitempty"`

	// When the first round began.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// When the job ended.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`

	// Restarts of the workers so far: recoveries of all strategies.
	// +optional
	Restarts int32 `json:"restarts,omitempty"`

	// Of the restarts, those in place: recovery.inPlace.maxRestarts limits them.
	// +optional
	RestartsCountTowardsMax int32 `json:"restartsCountTowardsMax,omitempty"`

	// Jobs of each replicatedJob, by what they are doing.
	// +optional
	// +listType=map
	// +listMapKey=name
	ReplicatedJobsStatus []ReplicatedJobStatus `json:"replicatedJobsStatus,omitempty"`

	// Members: the pods of the job that the coordinator knows.
	// +optional
	Members *MembersStatus `json:"members,omitempty"`

	// Spares: the members that wait.
	// +optional
	Spares *SparesStatus `json:"spares,omitempty"`

	// The newest round: the rendezvous that the workers are in, counted from 0.
	// +optional
	Round *int64 `json:"round,omitempty"`

	// The newest term: a coordinator's time in office. 1 for an appointed one, then
	// one more with each election.
	// +optional
	Term *int64 `json:"term,omitempty"`

	// The member whose sidecar is the coordinator.
	// +optional
	Coordinator *CoordinatorStatus `json:"coordinator,omitempty"`

	// Recoveries so far, by strategy.
	// +optional
	RecoveriesByStrategy *RecoveriesByStrategy `json:"recoveriesByStrategy,omitempty"`

	// The newest recovery.
	// +optional
	LastRecovery *RecoveryStatus `json:"lastRecovery,omitempty"`

	// The newest ten recoveries, the oldest first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	Recoveries []RecoveryStatus `json:"recoveries,omitempty"`

	// How far the training is, where it reports its steps.
	// +optional
	Progress *Progress `json:"progress,omitempty"`
}

// What the job is doing.
// +kubebuilder:validation:Enum=Pending;Starting;Running;Recovering;Succeeded;Failed
type Phase string

// Jobs of one replicatedJob, counted.
type ReplicatedJobStatus struct {
	// Name of the replicatedJob.
	Name string `json:"name"`

	// Jobs whose pods are all ready or have succeeded.
	// +optional
	// +kubebuilder:default=0
	Ready int32 `json:"ready"`

	// Jobs that have succeeded.
	// +optional
	// +kubebuilder:default=0
	Succeeded int32 `json:"succeeded"`

	// Jobs that have failed.
	// +optional
	// +kubebuilder:default=0
	Failed int32 `json:"failed"`

	// Jobs with at least one pod that is pending or running.
	// +optional
	// +kubebuilder:default=0
	Active int32 `json:"active"`

	// Jobs that are suspended.
	// +optional
	// +kubebuilder:default=0
	Suspended int32 `json:"suspended"`
}

// Members, counted. A member is one pod of the job, seen by the coordinator
// through its sidecar.
type MembersStatus struct {
	// Members that the job declares. One with elastic also trains with less.
	// +optional
	Desired int32 `json:"desired"`

	// Members that hold ranks in the newest round: less than desired while a job with
	// elastic has shrunk.
	// +optional
	Active int32 `json:"active"`

	// Active members whose workers run.
	// +optional
	Ready int32 `json:"ready"`
}

// Spares, counted.
type SparesStatus struct {
	// Spares to keep.
	// +optional
	Desired int32 `json:"desired"`

	// Spares that wait, ready to take ranks.
	// +optional
	Ready int32 `json:"ready"`

	// Spares that have taken ranks and are not replaced yet.
	// +optional
	Claimed int32 `json:"claimed"`
}

// The member whose sidecar is the coordinator.
type CoordinatorStatus struct {
	// Grows with each coordinator that the operator appoints.
	// +optional
	Epoch int64 `json:"epoch"`

	// Its term: 1 if the operator has appointed it, more if the pods have elected it
	// in this epoch. Empty until it was heard in office.
	// +optional
	Term *int64 `json:"term,omitempty"`

	// Name of its pod.
	// +optional
	PodName string `json:"podName,omitempty"`

	// UID of its pod.
	// +optional
	PodUID string `json:"podUID,omitempty"`
}

// Recoveries, counted by strategy.
type RecoveriesByStrategy struct {
	// Workers restarted, every pod stayed.
	// +optional
	InPlace int32 `json:"inPlace"`

	// A spare took the ranks of a pod that was lost or given up.
	// +optional
	SpareSwap int32 `json:"spareSwap"`

	// A pod that was lost or given up was created anew.
	// +optional
	PodRecreate int32 `json:"podRecreate"`

	// All pods of the job were created anew.
	// +optional
	JobRestart int32 `json:"jobRestart"`
}

// One recovery: from a fault to the first step of the next round.
type RecoveryStatus struct {
	// What broke.
	Fault Fault `json:"fault"`

	// How the job recovers. Empty while nobody is there to take the lost ranks.
	// +optional
	Strategy Strategy `json:"strategy,omitempty"`

	// Why it was this strategy and no smaller one.
	// +optional
	Reason string `json:"reason,omitempty"`

	// The round that the recovery led to.
	// +optional
	Round *int64 `json:"round,omitempty"`

	// Where the fault was, and what it looked like.
	// +optional
	Cause *Cause `json:"cause,omitempty"`

	// When the fault was detected.
	// +optional
	DetectedAt *metav1.MicroTime `json:"detectedAt,omitempty"`

	// When the training went on. Empty while it has not.
	// +optional
	ResumedAt *metav1.MicroTime `json:"resumedAt,omitempty"`

	// Seconds from detectedAt to resumedAt.
	// +optional
	Seconds *float64 `json:"seconds,omitempty"`
}

// What broke.
// +kubebuilder:validation:Enum=Process;Pod;Node;Hang;WeightUpdate
type Fault string

// How a job recovers.
// +kubebuilder:validation:Enum=InPlace;SpareSwap;PodRecreate;JobRestart
type Strategy string

// The first fault of a round. What follows within the round is a consequence.
type Cause struct {
	// Rank of the worker that failed first.
	// +optional
	Rank *int32 `json:"rank,omitempty"`

	// Name of its pod.
	// +optional
	Pod string `json:"pod,omitempty"`

	// Name of its node.
	// +optional
	Node string `json:"node,omitempty"`

	// Exit code of the worker, where it exited by itself.
	// +optional
	ExitCode *int32 `json:"exitCode,omitempty"`

	// Signal that ended the worker, such as SIGKILL.
	// +optional
	Signal string `json:"signal,omitempty"`

	// What is known of the fault, such as the worker's last error.
	// +optional
	Message string `json:"message,omitempty"`
}

// How far the training is.
type Progress struct {
	// The newest step that the workers reported.
	// +optional
	Step int64 `json:"step"`

	// Steps of the whole training, where it is known.
	// +optional
	Total *int64 `json:"total,omitempty"`

	// When the step was reported.
	// +optional
	At *metav1.MicroTime `json:"at,omitempty"`
}
