// Package v1alpha1 describes our kinds as Go types, because controller-gen reads
// Go: crds/ is generated from this folder (see generate.py). The TrainingJob is in
// this file, the HotSparePool in hotsparepool.go.
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
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A training job that keeps running through faults: a warm spare takes the
// ranks of a lost pod, and the workers of all other pods restart in place. It
// takes what a JobSet (jobset.x-k8s.io/v1alpha2) takes, and behaves as one where
// it has no launcher.
//
// Pods are named <job>-<replicatedJob>-<jobIndex>-<podIndex>-<5 characters>, spares
// <job>-<replicatedJob>-spare-<5 characters>-<5 characters>, in at most 63.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=trainingjobs,singular=trainingjob,shortName=tj,categories=all
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`,description="What the job is doing"
// +kubebuilder:printcolumn:name="Active",type=integer,JSONPath=`.status.members.active`,description="Members that hold ranks; without a launcher, pods of the Jobs that have not ended"
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=`.status.members.desired`,description="Members that the job needs; without a launcher, pods"
// +kubebuilder:printcolumn:name="Spares",type=integer,JSONPath=`.status.spares.ready`,description="Spares that wait, ready to take ranks"
// +kubebuilder:printcolumn:name="Round",type=integer,JSONPath=`.status.round`,description="The rendezvous that the workers are in, from 0; empty without a launcher"
// +kubebuilder:printcolumn:name="Restarts",type=integer,JSONPath=`.status.restarts`,description="Restarts of the whole job, as failurePolicy says"
// +kubebuilder:printcolumn:name="InPlace",type=integer,JSONPath=`.status.recoveriesByStrategy.inPlace`,description="Recoveries that restarted workers in place, and kept every pod"
// +kubebuilder:printcolumn:name="Swaps",type=integer,JSONPath=`.status.recoveriesByStrategy.spareSwap`,description="Recoveries by a spare"
// +kubebuilder:printcolumn:name="Suspended",type=boolean,JSONPath=`.spec.suspend`,priority=1,description="Whether the job is to rest"
// +kubebuilder:printcolumn:name="Step",type=integer,JSONPath=`.status.progress.step`,priority=1,description="The newest training step"
// +kubebuilder:printcolumn:name="Coordinator",type=string,JSONPath=`.status.coordinator.podName`,priority=1,description="The pod whose sidecar is the coordinator"
// +kubebuilder:printcolumn:name="Promoted",type=string,JSONPath=`.status.promotedSpares`,priority=1,description="Pods that were created as spares and hold ranks"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",fieldPath=".metadata.name",message="metadata.name must be a DNS label, because Services and hostnames are named after it: use lower-case letters, digits and '-', start with a letter, and leave out dots"
// +kubebuilder:validation:XValidation:rule="self.spec.replicatedJobs.all(j, size(self.metadata.name) + size(j.name) + size(string(j.replicas > 0 ? j.replicas - 1 : 0)) + size(string((has(j.template.spec.completions) ? j.template.spec.completions : j.template.spec.parallelism) > 0 ? (has(j.template.spec.completions) ? j.template.spec.completions : j.template.spec.parallelism) - 1 : 0)) <= 54)",fieldPath=".metadata.name",message="metadata.name is too long: pods are named <job>-<replicatedJob>-<jobIndex>-<podIndex>-<5 characters>, in at most 63; shorten metadata.name or replicatedJobs[].name"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.launcher) || self.spec.replicatedJobs.all(j, size(self.metadata.name) + size(j.name) <= 50)",fieldPath=".metadata.name",message="metadata.name is too long: spares are named <job>-<replicatedJob>-spare-<5 characters>-<5 characters>, in at most 63; shorten metadata.name or replicatedJobs[].name to at most 50 characters together"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.coordinator) || size(self.metadata.name) + size(self.spec.coordinator.replicatedJob) + size(string(self.spec.coordinator.jobIndex)) + size(string(self.spec.coordinator.podIndex)) + size(has(self.spec.network.subdomain) && size(self.spec.network.subdomain) > 0 ? self.spec.network.subdomain : self.metadata.name) <= 59",fieldPath=".spec.coordinator",message="coordinator: the label jobset.sigs.k8s.io/coordinator, <job>-<replicatedJob>-<jobIndex>-<podIndex>.<subdomain>, may have at most 63 characters: shorten metadata.name, replicatedJobs[].name or network.subdomain"
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
// +kubebuilder:validation:XValidation:rule="size(self.replicatedJobs) > 0",fieldPath=".replicatedJobs",message="replicatedJobs must have at least one entry: add the Jobs that the job consists of"
// +kubebuilder:validation:XValidation:rule="!has(self.launcher) || has(self.launcher.targetReplicatedJobs) || size(self.replicatedJobs) < 2",fieldPath=".launcher.targetReplicatedJobs",message="launcher.targetReplicatedJobs must say whose pods train as one where there are several replicatedJobs: set it to their names; the pods of all others are run as a JobSet runs them"
// +kubebuilder:validation:XValidation:rule="!has(self.launcher) || !has(self.launcher.targetReplicatedJobs) || self.launcher.targetReplicatedJobs.all(t, self.replicatedJobs.exists(j, j.name == t))",fieldPath=".launcher.targetReplicatedJobs",message="launcher.targetReplicatedJobs must name entries of replicatedJobs: correct the name, or add the entry"
// +kubebuilder:validation:XValidation:rule="self.replicatedJobs.all(j, (!has(self.launcher) || (has(self.launcher.targetReplicatedJobs) && !(j.name in self.launcher.targetReplicatedJobs)) || j.replicas >= 1))",fieldPath=".replicatedJobs",message="replicas must be at least 1 where the launcher is: set it to the number of Jobs whose pods train, or take the replicatedJob out of launcher.targetReplicatedJobs"
// +kubebuilder:validation:XValidation:rule="self.replicatedJobs.all(j, (!has(self.launcher) || (has(self.launcher.targetReplicatedJobs) && !(j.name in self.launcher.targetReplicatedJobs)) || (j.replicas <= 100000 && j.template.spec.parallelism >= 1 && j.template.spec.parallelism <= 100000)))",fieldPath=".replicatedJobs",message="parallelism must be 1 to 100000 where the launcher is, and replicas at most 100000: set parallelism to the number of pods of each Job"
// +kubebuilder:validation:XValidation:rule="self.replicatedJobs.all(j, (!has(self.launcher) || (has(self.launcher.targetReplicatedJobs) && !(j.name in self.launcher.targetReplicatedJobs)) || (!has(j.template.spec.completions) || j.template.spec.completions == j.template.spec.parallelism)))",fieldPath=".replicatedJobs",message="completions must equal parallelism where the launcher is, because all pods of a training run at once: set both to the same number, or leave completions out"
// +kubebuilder:validation:XValidation:rule="self.replicatedJobs.all(j, (!has(self.launcher) || (has(self.launcher.targetReplicatedJobs) && !(j.name in self.launcher.targetReplicatedJobs)) || j.template.spec.completionMode == 'Indexed'))",fieldPath=".replicatedJobs",message="completionMode must be Indexed where the launcher is, because each pod of a training has its own ranks: set it to Indexed, or leave it out"
// +kubebuilder:validation:XValidation:rule="self.replicatedJobs.all(j, (!has(self.launcher) || (has(self.launcher.targetReplicatedJobs) && !(j.name in self.launcher.targetReplicatedJobs)) || (!has(j.template.spec.template.spec.hostNetwork) || !j.template.spec.template.spec.hostNetwork)))",fieldPath=".replicatedJobs",message="hostNetwork must be false or be left out where the launcher is: the sidecars listen on fixed ports, which two pods of a node cannot share, and which the node may use itself; for RDMA, give the pods a secondary network or the devices of a device plugin instead"
// +kubebuilder:validation:XValidation:rule="self.replicatedJobs.all(j, (!has(self.launcher) || (has(self.launcher.targetReplicatedJobs) && !(j.name in self.launcher.targetReplicatedJobs)) || (!has(self.launcher.container) || j.template.spec.template.spec.containers.exists(c, c.name == self.launcher.container))))",fieldPath=".launcher.container",message="launcher.container must name a container of replicatedJobs[].template.spec.template.spec.containers; leave it out to use the first"
// +kubebuilder:validation:XValidation:rule="self.replicatedJobs.all(j, (!has(self.launcher) || (has(self.launcher.targetReplicatedJobs) && !(j.name in self.launcher.targetReplicatedJobs)) || (has(self.launcher.container) ? j.template.spec.template.spec.containers.all(c, c.name != self.launcher.container || (has(c.command) && size(c.command) > 0)) : (size(j.template.spec.template.spec.containers) > 0 && has(j.template.spec.template.spec.containers[0].command) && size(j.template.spec.template.spec.containers[0].command) > 0))))",fieldPath=".replicatedJobs",message="the trainer container needs a command: the launcher starts it; an image's ENTRYPOINT cannot be wrapped. Set command in the container that launcher.container names (default: the first)"
// +kubebuilder:validation:XValidation:rule="self.replicatedJobs.all(j, (!has(self.launcher) || (has(self.launcher.targetReplicatedJobs) && !(j.name in self.launcher.targetReplicatedJobs)) || (has(self.launcher.container) ? j.template.spec.template.spec.containers.all(c, c.name != self.launcher.container || (!has(c.restartPolicyRules) && (!has(c.restartPolicy) || c.restartPolicy == 'Never'))) : (size(j.template.spec.template.spec.containers) == 0 || (!has(j.template.spec.template.spec.containers[0].restartPolicyRules) && (!has(j.template.spec.template.spec.containers[0].restartPolicy) || j.template.spec.template.spec.containers[0].restartPolicy == 'Never'))))))",fieldPath=".replicatedJobs",message="restartPolicy and restartPolicyRules cannot be set on the container of the launcher, which restarts workers itself (recovery.inPlace): remove them"
// +kubebuilder:validation:XValidation:rule="has(self.launcher) || (self.spares.replicas == 0 && !has(self.spares.pool))",fieldPath=".spares",message="spares need a launcher, which keeps them warm: add launcher: {nprocPerNode: <workers per pod>}, or remove spares"
// +kubebuilder:validation:XValidation:rule="has(self.launcher) || (!has(self.elastic) && !has(self.faults))",fieldPath=".launcher",message="elastic and faults need a launcher, which knows of the workers: add launcher: {nprocPerNode: <workers per pod>}, or remove them"
// +kubebuilder:validation:XValidation:rule="!has(self.launcher) || !has(self.spares.replicatedJob) || (has(self.launcher.targetReplicatedJobs) ? self.spares.replicatedJob in self.launcher.targetReplicatedJobs : self.replicatedJobs.exists(j, j.name == self.spares.replicatedJob))",fieldPath=".spares.replicatedJob",message="spares.replicatedJob must be one whose pods train: set it to a name of launcher.targetReplicatedJobs, or leave it out to use the first"
// +kubebuilder:validation:XValidation:rule="!has(self.elastic) || !has(self.elastic.minPods) || self.elastic.minPods <= self.replicatedJobs.filter(j, !has(self.launcher) || !has(self.launcher.targetReplicatedJobs) || j.name in self.launcher.targetReplicatedJobs).map(j, j.replicas * j.template.spec.parallelism).sum()",fieldPath=".elastic.minPods",message="elastic.minPods must be at most the pods of the job, replicas times parallelism of replicatedJobs: lower it, or leave out elastic if the job is never to shrink"
// +kubebuilder:validation:XValidation:rule="!has(self.termination.replicaGroups) || [ self.replicatedJobs.filter(j, !has(self.launcher) || !has(self.launcher.targetReplicatedJobs) || j.name in self.launcher.targetReplicatedJobs).map(j, j.replicas * j.template.spec.parallelism).sum() ].all(n, self.termination.replicaGroups.all(g, g.all(r, r >= 0 && r < n)))",fieldPath=".termination.replicaGroups",message="termination.replicaGroups must name pods by their group rank: each is 0 or more, and below the pods of the job, replicas times parallelism of replicatedJobs"
// +kubebuilder:validation:XValidation:rule="!has(self.launcher) || !has(self.launcher.mode) || self.launcher.mode != 'Torchrun' || !has(self.spares) || !has(self.spares.warmup)",fieldPath=".spares.warmup",message="spares.warmup has no effect with launcher.mode Torchrun, which starts nothing but torchrun: remove it, or set mode to Wrap"
// +kubebuilder:validation:XValidation:rule="self.replicatedJobs.all(j, !has(j.dependsOn) || j.dependsOn.all(d, d.name != j.name && self.replicatedJobs.exists(e, e.name == d.name)))",fieldPath=".replicatedJobs",message="dependsOn must name another entry of replicatedJobs: correct the name, or add the entry"
// +kubebuilder:validation:XValidation:rule="!has(self.launcher) || !has(self.launcher.targetReplicatedJobs) || self.replicatedJobs.all(j, !(j.name in self.launcher.targetReplicatedJobs) || !has(j.dependsOn) || j.dependsOn.all(d, !(d.name in self.launcher.targetReplicatedJobs)))",fieldPath=".replicatedJobs",message="dependsOn cannot name another replicatedJob of launcher.targetReplicatedJobs, because their pods start as one: remove it"
// +kubebuilder:validation:XValidation:rule="self.startupPolicy.startupPolicyOrder != 'InOrder' || self.replicatedJobs.all(j, !has(j.dependsOn))",fieldPath=".startupPolicy",message="startupPolicy InOrder and dependsOn exclude each other: say the whole order in dependsOn, and remove startupPolicy"
// +kubebuilder:validation:XValidation:rule="!has(self.successPolicy.targetReplicatedJobs) || self.successPolicy.targetReplicatedJobs.all(t, self.replicatedJobs.exists(j, j.name == t))",fieldPath=".successPolicy.targetReplicatedJobs",message="successPolicy.targetReplicatedJobs must name entries of replicatedJobs: correct the name, or leave it out to mean all"
// +kubebuilder:validation:XValidation:rule="!has(self.failurePolicy) || !has(self.failurePolicy.rules) || self.failurePolicy.rules.all(r, !has(r.targetReplicatedJobs) || r.targetReplicatedJobs.all(t, self.replicatedJobs.exists(j, j.name == t)))",fieldPath=".failurePolicy.rules",message="failurePolicy.rules[].targetReplicatedJobs must name entries of replicatedJobs: correct the name, or leave it out to mean all"
// +kubebuilder:validation:XValidation:rule="!has(self.failurePolicy) || !has(self.failurePolicy.restartStrategy) || self.failurePolicy.restartStrategy != 'InPlaceRestart' || has(self.launcher)",fieldPath=".failurePolicy.restartStrategy",message="failurePolicy.restartStrategy InPlaceRestart needs a launcher, which restarts the workers in place: add launcher: {nprocPerNode: <workers per pod>}, or set it to Recreate"
// +kubebuilder:validation:XValidation:rule="!has(self.failurePolicy) || !has(self.failurePolicy.rules) || self.failurePolicy.rules.all(r, !(r.action in ['RestartJob', 'RestartJobAndIgnoreMaxRestarts'])) || self.replicatedJobs.all(j, j.replicas <= 1024)",fieldPath=".failurePolicy.rules",message="failurePolicy.rules[].action RestartJob needs replicatedJobs of at most 1024 replicas, whose restarts status counts one by one: lower replicas, or set the action to RestartJobSet"
// +kubebuilder:validation:XValidation:rule="self.replicatedJobs.all(j, j.replicas * j.template.spec.parallelism <= 2147483647)",fieldPath=".replicatedJobs",message="replicas times parallelism must be at most 2147483647, the most pods that can be counted: lower replicas or parallelism"
// +kubebuilder:validation:XValidation:rule="!has(self.coordinator) || self.replicatedJobs.exists(j, j.name == self.coordinator.replicatedJob && self.coordinator.jobIndex < j.replicas && self.coordinator.podIndex < (has(j.template.spec.completions) ? j.template.spec.completions : j.template.spec.parallelism) && j.template.spec.completionMode == 'Indexed')",fieldPath=".coordinator",message="coordinator must name a pod: replicatedJob an entry of replicatedJobs with completionMode Indexed, jobIndex below its replicas, podIndex below its completions"
// +kubebuilder:validation:XValidation:rule="(has(self.suspend) && self.suspend) || (has(oldSelf.suspend) && oldSelf.suspend) || self.replicatedJobs == oldSelf.replicatedJobs",fieldPath=".replicatedJobs",message="replicatedJobs is immutable while the job runs: set suspend to true to change it, or delete the TrainingJob and create it anew"
// +kubebuilder:validation:XValidation:rule="has(self.launcher) == has(oldSelf.launcher)",fieldPath=".launcher",message="launcher is immutable: delete the TrainingJob and create it anew"
// +kubebuilder:validation:XValidation:rule="has(self.elastic) == has(oldSelf.elastic) && (!has(self.elastic) || self.elastic == oldSelf.elastic)",fieldPath=".elastic",message="elastic is immutable, because pods keep the one that they were created with: delete the TrainingJob and create it anew"
// +kubebuilder:validation:XValidation:rule="has(self.faults) == has(oldSelf.faults) && (!has(self.faults) || self.faults == oldSelf.faults)",fieldPath=".faults",message="faults is immutable, because pods keep the one that they were created with: delete the TrainingJob and create it anew"
// +kubebuilder:validation:XValidation:rule="!has(self.rollouts) || has(self.launcher)",fieldPath=".rollouts",message="rollouts need a launcher, whose workers tell of their weight updates: add launcher: {targetReplicatedJobs: [<whose pods train>]}, or remove rollouts"
// +kubebuilder:validation:XValidation:rule="!has(self.rollouts) || has(self.failurePolicy)",fieldPath=".rollouts",message="rollouts need a failurePolicy, which says how often the job may restart for a failed update: add failurePolicy: {maxRestarts: <number>}"
// +kubebuilder:validation:XValidation:rule="!has(self.rollouts) || self.rollouts.replicatedJobs.all(t, self.replicatedJobs.exists(j, j.name == t) && !(has(self.launcher) && (!has(self.launcher.targetReplicatedJobs) || t in self.launcher.targetReplicatedJobs)))",fieldPath=".rollouts.replicatedJobs",message="rollouts.replicatedJobs must name entries of replicatedJobs that launcher.targetReplicatedJobs does not name: correct the name, add the entry, or take it out of launcher.targetReplicatedJobs"
// +kubebuilder:validation:XValidation:rule="!has(self.rollouts) || self.replicatedJobs.all(j, !(j.name in self.rollouts.replicatedJobs) || j.replicas <= 1024)",fieldPath=".rollouts.replicatedJobs",message="rollouts.replicatedJobs must have at most 1024 replicas each, whose restarts status counts one by one: lower replicas"
// +kubebuilder:validation:XValidation:rule="!has(self.rollouts) || !has(self.rollouts.gateway) || (self.network.enableDNSHostnames && self.replicatedJobs.all(j, !(j.name in self.rollouts.replicatedJobs) || j.template.spec.completionMode == 'Indexed'))",fieldPath=".rollouts.gateway",message="rollouts.gateway needs hostnames, by which workers find the servers: set network.enableDNSHostnames to true and completionMode of the rollouts to Indexed, or leave them out"
// +kubebuilder:validation:XValidation:rule="has(self.rollouts) == has(oldSelf.rollouts) && (!has(self.rollouts) || self.rollouts == oldSelf.rollouts)",fieldPath=".rollouts",message="rollouts is immutable, because pods keep the one that they were created with: delete the TrainingJob and create it anew"
// +kubebuilder:validation:XValidation:rule="has(self.failurePolicy) == has(oldSelf.failurePolicy) && (!has(self.failurePolicy) || self.failurePolicy == oldSelf.failurePolicy)",fieldPath=".failurePolicy",message="failurePolicy is immutable: delete the TrainingJob and create it anew"
// +kubebuilder:validation:XValidation:rule="has(self.coordinator) == has(oldSelf.coordinator) && (!has(self.coordinator) || self.coordinator == oldSelf.coordinator)",fieldPath=".coordinator",message="coordinator is immutable: delete the TrainingJob and create it anew"
// +kubebuilder:validation:XValidation:rule="has(self.managedBy) == has(oldSelf.managedBy) && (!has(self.managedBy) || self.managedBy == oldSelf.managedBy)",fieldPath=".managedBy",message="managedBy is immutable: delete the TrainingJob and create it anew"
// +kubebuilder:validation:XValidation:rule="has(self.volumeClaimPolicies) == has(oldSelf.volumeClaimPolicies) && (!has(self.volumeClaimPolicies) || self.volumeClaimPolicies == oldSelf.volumeClaimPolicies)",fieldPath=".volumeClaimPolicies",message="volumeClaimPolicies is immutable: delete the TrainingJob and create it anew"
// +kubebuilder:validation:XValidation:rule="self.network == oldSelf.network",fieldPath=".network",message="network is immutable: delete the TrainingJob and create it anew"
// +kubebuilder:validation:XValidation:rule="self.successPolicy == oldSelf.successPolicy",fieldPath=".successPolicy",message="successPolicy is immutable: delete the TrainingJob and create it anew"
// +kubebuilder:validation:XValidation:rule="self.startupPolicy == oldSelf.startupPolicy",fieldPath=".startupPolicy",message="startupPolicy is immutable: delete the TrainingJob and create it anew"
type TrainingJobSpec struct {
	// The Jobs that the job consists of, as in JobSet. Where there is a launcher, the
	// pods of those that launcher.targetReplicatedJobs names train as one, and are run
	// by the operator directly; all others become Jobs of their own. May be changed
	// only while the job is suspended.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	ReplicatedJobs []ReplicatedJob `json:"replicatedJobs"`

	// How pods find each other, as in JobSet. It cannot be changed after creation.
	// +optional
	// +kubebuilder:default={}
	Network Network `json:"network,omitempty"`

	// When the job has succeeded, as in JobSet. Default: once all Jobs have. It cannot
	// be changed after creation.
	// +optional
	// +kubebuilder:default={operator: All}
	SuccessPolicy SuccessPolicy `json:"successPolicy,omitempty"`

	// What follows when a Job has failed, as in JobSet. Left out, the job fails. The
	// pods of the launcher fail as Jobs do, with reason BackoffLimitExceeded, once their
	// recovery is at its end. It cannot be changed after creation.
	// +optional
	FailurePolicy *FailurePolicy `json:"failurePolicy,omitempty"`

	// In which order replicatedJobs start, as in JobSet. It cannot be changed after
	// creation.
	// +optional
	// +kubebuilder:default={startupPolicyOrder: AnyOrder}
	StartupPolicy StartupPolicy `json:"startupPolicy,omitempty"`

	// Whether the job rests: its pods are deleted, and made anew once it is false. May
	// be changed at any time.
	// +optional
	Suspend *bool `json:"suspend,omitempty"`

	// A pod whose hostname all Jobs and pods are told by a label and an annotation,
	// jobset.sigs.k8s.io/coordinator, as in JobSet. It has nothing to do with the
	// coordinator that status speaks of. It cannot be changed after creation.
	// +optional
	Coordinator *Coordinator `json:"coordinator,omitempty"`

	// Who manages this job: left out, or understudy.dev/operator, this operator does.
	// Any other value, such as Kueue's for a job that runs in another cluster, makes it
	// leave the job alone. It cannot be changed after creation.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9/_.~%!$&()*+,;=:@-]+$')",message="managedBy must be a domain and a path, such as kueue.x-k8s.io/multikueue: correct it, or leave it out"
	ManagedBy *string `json:"managedBy,omitempty"`

	// How long after its end the job is deleted, with all that belongs to it. Left
	// out: never. May be changed at any time.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 0",message="ttlSecondsAfterFinished must be 0 or more: the seconds after which a finished job is deleted, or leave it out to keep it"
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`

	// Volume claims that pods share, as in JobSet: each is made as <claim>-<job>, and is
	// a volume of every pod with a container that mounts one of its name. It cannot be
	// changed after creation.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:XValidation:rule="[self.map(p, has(p.templates) ? p.templates.map(t, has(t.metadata) && has(t.metadata.name) ? t.metadata.name : '') : [])].all(names, names.all(n, size(n) == 0 || names.exists_one(m, sets.intersects(n, m))))",message="volumeClaimPolicies[].templates[].metadata.name must be unique, because it names the claim, and each policy would say something else of it: rename one of the templates, or remove it"
	VolumeClaimPolicies []VolumeClaimPolicy `json:"volumeClaimPolicies,omitempty"`

	// How the launcher starts the workers in each pod. Left out, the job behaves as its
	// JobSet would. It cannot be changed after creation.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="launcher is immutable: delete the TrainingJob and create it anew"
	Launcher *Launcher `json:"launcher,omitempty"`

	// Warm pods that wait to take a lost pod's ranks. May be changed at any time.
	// +optional
	// +kubebuilder:default={}
	Spares Spares `json:"spares,omitempty"`

	// How the job recovers, and how much of that is tried before it fails. May be
	// changed at any time, coordinatorLossTimeout aside; a change counts for the pods that are
	// created after it.
	// +optional
	// +kubebuilder:default={}
	Recovery Recovery `json:"recovery,omitempty"`

	// How workers end when their pod is asked to end. It cannot be changed after
	// creation.
	// +optional
	// +kubebuilder:default={}
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="termination is immutable, because pods keep the one that they were created with: delete the TrainingJob and create it anew"
	Termination Termination `json:"termination,omitempty"`

	// What counts as a fault beside processes, pods and nodes that end. It cannot be
	// changed after creation.
	// +optional
	Faults *Faults `json:"faults,omitempty"`

	// Lets the job train with less pods than it declares when no spare takes a lost
	// pod's ranks. Left out, the job waits for a pod instead. It cannot be changed
	// after creation.
	// +optional
	Elastic *Elastic `json:"elastic,omitempty"`

	// In RL: the servers whose weights the workers update, and what follows when that
	// fails. It cannot be changed after creation.
	// +optional
	Rollouts *Rollouts `json:"rollouts,omitempty"`
}

// A Job template and the number of Jobs to make of it.
type ReplicatedJob struct {
	// Name of the entry. It is part of the names of Jobs and pods.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="replicatedJobs[].name must be a DNS label, because it is part of the pods' names: use lower-case letters, digits and '-'"
	Name string `json:"name"`

	// Name of the group that the entry belongs to: Jobs of a group have an index within
	// it, in the label jobset.sigs.k8s.io/job-group-index. Default: default.
	// +optional
	// +kubebuilder:default=default
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="replicatedJobs[].groupName must be a DNS label: use lower-case letters, digits and '-', start with a letter, or leave it out"
	GroupName string `json:"groupName,omitempty"`

	// Number of Jobs made of the template. Default: 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:XValidation:rule="self >= 0",message="replicas must be 0 or more: set it to the number of Jobs to make of the template"
	Replicas int32 `json:"replicas,omitempty"`

	// Which other entries this one waits for, before its Jobs are made.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=5
	DependsOn []DependsOn `json:"dependsOn,omitempty"`

	// The Job's template.
	Template JobTemplate `json:"template"`
}

// Another entry of replicatedJobs, and what it has to be.
type DependsOn struct {
	// Name of the other entry.
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// Ready: all of its Jobs are ready, or have ended. Complete: all have succeeded.
	// +kubebuilder:validation:XValidation:rule="self in ['Ready', 'Complete']",message="dependsOn[].status must be Ready or Complete: set it to what the other replicatedJob has to be"
	// +kubebuilder:validation:MaxLength=16
	Status string `json:"status"`
}

// Template of a Job.
type JobTemplate struct {
	// Labels and annotations of the Jobs. The pods that the operator runs directly get
	// them too.
	// +optional
	Metadata JobTemplateMetadata `json:"metadata,omitempty"`

	// The Job's spec, as in a Job: see kubectl explain job.spec. The pods of the
	// launcher are run as one: there completions equals parallelism, and what counts
	// failed pods, such as backoffLimit, has no meaning.
	// +kubebuilder:validation:XValidation:rule="!has(self.template.spec.restartPolicy) || self.template.spec.restartPolicy in ['Never', 'OnFailure']",fieldPath=".template.spec.restartPolicy",message="restartPolicy must be Never or OnFailure, or be left out, as in every Job; pods of the launcher always run with Never, and it restarts their workers"
	Spec batchv1.JobSpec `json:"spec"`
}

// Labels and annotations of what is made of a template. What else tools write
// there is accepted, and means nothing.
type JobTemplateMetadata struct {
	// Labels to set.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`

	// Annotations to set.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`

	// Means nothing: Jobs are named <job>-<replicatedJob>-<jobIndex>.
	// +optional
	Name string `json:"name,omitempty"`

	// Means nothing: Jobs are in the namespace of the TrainingJob.
	// +optional
	Namespace string `json:"namespace,omitempty"`

	// Means nothing.
	// +optional
	Finalizers []string `json:"finalizers,omitempty"`
}

// How pods find each other.
type Network struct {
	// Whether pods have hostnames, <job>-<replicatedJob>-<jobIndex>-<podIndex>.<subdomain>,
	// by a headless Service. Default: true.
	// +optional
	// +kubebuilder:default=true
	EnableDNSHostnames *bool `json:"enableDNSHostnames,omitempty"`

	// Name of the headless Service. Default: the name of the TrainingJob.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z]([-a-z0-9]*[a-z0-9])?)?$')",message="network.subdomain must be a DNS label, because a Service is named so: use lower-case letters, digits and '-', start with a letter, or leave it out"
	Subdomain string `json:"subdomain,omitempty"`

	// Whether a hostname is known before its pod is ready. Default: true.
	// +optional
	// +kubebuilder:default=true
	PublishNotReadyAddresses *bool `json:"publishNotReadyAddresses,omitempty"`
}

// When the job has succeeded.
type SuccessPolicy struct {
	// All: once all of the Jobs have succeeded. Any: once one has.
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self in ['All', 'Any']",message="successPolicy.operator must be All or Any: set it to how many of the Jobs have to succeed"
	Operator string `json:"operator"`

	// Whose Jobs count, by name. Default: those of all replicatedJobs.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=63
	TargetReplicatedJobs []string `json:"targetReplicatedJobs,omitempty"`
}

// What follows when a Job has failed.
type FailurePolicy struct {
	// Restarts that are allowed, of the whole job and of single Jobs together. One more
	// failure fails the job. Default: 0.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 0",message="failurePolicy.maxRestarts must be 0 or more: the number of restarts that are allowed"
	MaxRestarts int32 `json:"maxRestarts,omitempty"`

	// How the whole job restarts. Recreate: a Job is made anew as soon as the one before
	// it is gone. BlockingRecreate: once all are gone. InPlaceRestart: pods with a launcher
	// restart in place anyway, so it means Recreate for what is left. Default: Recreate.
	// +optional
	// +kubebuilder:default=Recreate
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self in ['Recreate', 'BlockingRecreate', 'InPlaceRestart']",message="failurePolicy.restartStrategy must be Recreate, BlockingRecreate or InPlaceRestart: set it to one of them, or leave it out"
	RestartStrategy string `json:"restartStrategy,omitempty"`

	// The first rule that applies to a failed Job says what follows. Where none does, the
	// whole job restarts, at the cost of one of maxRestarts.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(r, !has(r.name) || self.exists_one(s, has(s.name) && s.name == r.name))",message="failurePolicy.rules[].name must be unique: rename one of the rules, or leave out the name"
	// +kubebuilder:validation:XValidation:rule="[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31].all(i, i >= size(self) || has(self[i].name) || !self.exists(s, has(s.name) && s.name == ['failurePolicyRule0', 'failurePolicyRule1', 'failurePolicyRule2', 'failurePolicyRule3', 'failurePolicyRule4', 'failurePolicyRule5', 'failurePolicyRule6', 'failurePolicyRule7', 'failurePolicyRule8', 'failurePolicyRule9', 'failurePolicyRule10', 'failurePolicyRule11', 'failurePolicyRule12', 'failurePolicyRule13', 'failurePolicyRule14', 'failurePolicyRule15', 'failurePolicyRule16', 'failurePolicyRule17', 'failurePolicyRule18', 'failurePolicyRule19', 'failurePolicyRule20', 'failurePolicyRule21', 'failurePolicyRule22', 'failurePolicyRule23', 'failurePolicyRule24', 'failurePolicyRule25', 'failurePolicyRule26', 'failurePolicyRule27', 'failurePolicyRule28', 'failurePolicyRule29', 'failurePolicyRule30', 'failurePolicyRule31'][i]))",message="failurePolicy.rules[].name cannot be the name that another rule has by default, failurePolicyRule and its number from 0: rename the rule, or name the other one"
	Rules []FailurePolicyRule `json:"rules,omitempty"`
}

// What follows when a Job has failed in a certain way.
type FailurePolicyRule struct {
	// Name of the rule, for events. Default: failurePolicyRule and its number.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$')",message="failurePolicy.rules[].name must start with a letter, go on with letters, digits, '_', ',' and ':', and end with none of the last two: correct it, or leave it out"
	Name string `json:"name,omitempty"`

	// What follows: the job fails, it restarts, or the failed Job alone does; the latter
	// two also without a cost.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self in ['FailJobSet', 'RestartJobSet', 'RestartJobSetAndIgnoreMaxRestarts', 'RestartJob', 'RestartJobAndIgnoreMaxRestarts']",message="failurePolicy.rules[].action must be FailJobSet, RestartJobSet, RestartJobSetAndIgnoreMaxRestarts, RestartJob or RestartJobAndIgnoreMaxRestarts: set it to what is to follow"
	Action string `json:"action"`

	// Reasons of a Job's failure that the rule applies to. Default: any.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.all(r, r in ['BackoffLimitExceeded', 'DeadlineExceeded', 'FailedIndexes', 'MaxFailedIndexesExceeded', 'PodFailurePolicy'])",message="failurePolicy.rules[].onJobFailureReasons must be BackoffLimitExceeded, DeadlineExceeded, FailedIndexes, MaxFailedIndexesExceeded or PodFailurePolicy: these are the reasons that Jobs fail for"
	OnJobFailureReasons []string `json:"onJobFailureReasons,omitempty"`

	// Regular expressions (RE2) of which one has to be found in the message of the Job's
	// failure. Default: any message will do.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	OnJobFailureMessagePatterns []string `json:"onJobFailureMessagePatterns,omitempty"`

	// Whose Jobs the rule applies to, by name. Default: those of all replicatedJobs.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=63
	TargetReplicatedJobs []string `json:"targetReplicatedJobs,omitempty"`
}

// In which order replicatedJobs start.
type StartupPolicy struct {
	// AnyOrder: all at once. InOrder: each once the Jobs of the one before are ready.
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self in ['AnyOrder', 'InOrder']",message="startupPolicy.startupPolicyOrder must be AnyOrder or InOrder: set it to how replicatedJobs start"
	StartupPolicyOrder string `json:"startupPolicyOrder"`
}

// A pod whose hostname all others are told.
type Coordinator struct {
	// Name of its replicatedJob.
	// +kubebuilder:validation:MaxLength=63
	ReplicatedJob string `json:"replicatedJob"`

	// Index of its Job. Default: 0.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:XValidation:rule="self >= 0",message="coordinator.jobIndex must be 0 or more: the index of the Job whose pod is meant"
	JobIndex int32 `json:"jobIndex,omitempty"`

	// Its completion index in the Job. Default: 0.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:XValidation:rule="self >= 0",message="coordinator.podIndex must be 0 or more: the completion index of the pod that is meant"
	PodIndex int32 `json:"podIndex,omitempty"`
}

// Volume claims that pods share, and how long they stay.
type VolumeClaimPolicy struct {
	// The claims. The name of each is that of a volume, which containers mount.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:XValidation:rule="self.all(t, has(t.metadata) && has(t.metadata.name) && size(t.metadata.name) > 0)",message="volumeClaimPolicies[].templates[].metadata.name must be set: it names the volume, and the claim <name>-<job>"
	// +kubebuilder:validation:XValidation:rule="self.all(t, !has(t.metadata) || !has(t.metadata.__namespace__) || size(t.metadata.__namespace__) == 0)",message="volumeClaimPolicies[].templates[].metadata.namespace cannot be set, because claims are in the namespace of the TrainingJob: remove it"
	// +kubebuilder:validation:XValidation:rule="self.all(t, !has(t.metadata) || !has(t.metadata.name) || self.exists_one(u, has(u.metadata) && has(u.metadata.name) && u.metadata.name == t.metadata.name))",message="volumeClaimPolicies[].templates[].metadata.name must be unique: rename one of the templates, or remove it"
	Templates []corev1.PersistentVolumeClaim `json:"templates,omitempty"`

	// How long the claims stay.
	// +optional
	// +kubebuilder:default={}
	RetentionPolicy VolumeRetentionPolicy `json:"retentionPolicy,omitempty"`
}

// How long volume claims stay.
type VolumeRetentionPolicy struct {
	// Whether the claims are deleted with the TrainingJob: Delete, or Retain. Default:
	// Delete.
	// +optional
	// +kubebuilder:default=Delete
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self in ['Delete', 'Retain']",message="volumeClaimPolicies[].retentionPolicy.whenDeleted must be Delete or Retain: set it to what becomes of the claims when the TrainingJob is deleted"
	WhenDeleted string `json:"whenDeleted,omitempty"`
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

	// Whose pods train as one, by the names of their replicatedJobs: group ranks count
	// through these, in the order in which they are listed there. All others become
	// Jobs, as in a JobSet. Needed where there are several replicatedJobs. Default: the
	// only one.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=63
	TargetReplicatedJobs []string `json:"targetReplicatedJobs,omitempty"`

	// Name of the trainer container, whose command the workers run. Default: the
	// first container.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Container string `json:"container,omitempty"`

	// Whether each pod runs a fork server: a process that imports torch once and forks
	// the workers, so that a restart costs no imports. Workers of a command that is not
	// Python are always new processes. Set it to false if the script does not work in a
	// forked process. Default: true.
	// +optional
	// +kubebuilder:default=true
	ForkServer *bool `json:"forkServer,omitempty"`

	// Modules that the fork server imports before the first round. What is not installed
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

	// Name of the replicatedJob whose template the spares have. Default: the first whose
	// pods train.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	ReplicatedJob string `json:"replicatedJob,omitempty"`

	// Name of a PriorityClass, which the spares' pods get in place of the template's: a
	// lower one, so that a spare is preempted before a pod that was made to train. A pod's
	// priority does not change when it takes ranks. Default: the template's.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$')",message="spares.priorityClassName must be the name of a PriorityClass: use lower-case letters, digits, '-' and '.', or leave it out"
	PriorityClassName string `json:"priorityClassName,omitempty"`

	// Name of a node label, such as topology.kubernetes.io/zone or one of your racks:
	// a lost pod's ranks go to a spare on a node with the same value of it, where one
	// waits. It does not decide where spares are scheduled: the pod template does.
	// Default: any spare will do.
	// +optional
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')",message="spares.topologyKey must be the name of a node label, such as topology.kubernetes.io/zone: set it to a label that your nodes have, or leave it out"
	TopologyKey string `json:"topologyKey,omitempty"`

	// Name of a HotSparePool in the same namespace. Where the job has lost more pods than
	// its own spares can replace, it claims spares of that pool. Left out: of none.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Pool string `json:"pool,omitempty"`

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

// How workers end when their pod is asked to end.
type Termination struct {
	// Whether workers get SIGTERM and may save within the grace period. Auto: unless
	// the pod's node is faulty (its annotation understudy.dev/faulty says so): there
	// they are killed at once, because a save on dying hardware hangs, or breaks what
	// it writes. Always and Never: whatever the node is. Default: Auto.
	// +optional
	// +kubebuilder:default=Auto
	// +kubebuilder:validation:XValidation:rule="self in ['Auto', 'Always', 'Never']",message="termination.onSigterm must be Auto, Always or Never: set it to one of them, or leave it out"
	OnSigterm string `json:"onSigterm,omitempty"`

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
	// When a training hangs. If unset, it never does.
	// +optional
	Hang *Hang `json:"hang,omitempty"`

	// Path of a file on the nodes, such as /run/nologin. As long as it exists on a node,
	// the node is faulty for this job. The sidecar of every pod mounts the file's folder
	// read-only as a hostPath volume, which namespaces with the pod security standards
	// baseline and restricted reject. Default: none.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.matches('^(/[^/]+){2,}$') && !self.matches('/[.][.]?(/|$)')",message="faults.nodeFile must be an absolute path of a file in a folder, such as /run/nologin, without . and ..: the folder is mounted into the sidecar, and may not be the root of the node"
	NodeFile string `json:"nodeFile,omitempty"`

	// How new pods are kept off nodes that something is held against: a verdict of a fault
	// source, or faults of several jobs that are remembered. Prefer: other nodes come
	// first, and one of these is used where nothing else is free, which an event tells.
	// Require: they are not used. Off: nothing is avoided. With Prefer and Require no pod
	// goes to a node whose hardware is broken: it would get no ranks there. What was
	// avoided is in status.avoidedNodes. Default: Prefer.
	// +optional
	// +kubebuilder:default=Prefer
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self in ['Prefer', 'Require', 'Off']",message="faults.avoidNodes must be Prefer, Require or Off: set it to how new pods are kept off nodes that something is held against, or leave it out"
	AvoidNodes string `json:"avoidNodes,omitempty"`

	// Whether a pod gives its ranks to a spare before it fails, because a fault source holds
	// something against its node. NextCheckpoint: all workers get SIGTERM and may save
	// first; from broken hardware the ranks go at once, and the others save where
	// termination.replicaGroups says that they hold all shards. Now: at once, and nobody saves.
	// Off: a pod trains on until it fails, or is deleted. Without a spare on another node
	// it does so anyway. Default: Off.
	// +optional
	// +kubebuilder:default=Off
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self in ['Off', 'NextCheckpoint', 'Now']",message="faults.proactive must be Off, NextCheckpoint or Now: set it to whether a pod on a bad node gives its ranks to a spare before it fails, or leave it out"
	Proactive string `json:"proactive,omitempty"`
}

// When a training hangs.
type Hang struct {
	// A worker hangs when it has called understudy_torch.step() in this round, and then
	// has not for so long: a duration such as 90s, 10m or 1h. Its pod's log gets the
	// Python stacks of all its workers, the slowest rank is named, and the job recovers
	// as from a worker that fails. Set it to well above the longest time between two
	// steps, saves and evaluations included: what takes longer without a step() counts
	// as a hang. That is why it is off unless it is set.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && self.matches('[1-9]')",message="faults.hang.stepTimeout must be a duration above zero in whole hours, minutes and seconds, such as 90s, 10m or 1h: longer than any time between two calls of step()"
	StepTimeout string `json:"stepTimeout,omitempty"`

	// A round hangs if none of its workers has called understudy_torch.step() for so
	// long after the round was formed: a duration such as 10m or 1h, or 0s for never. The
	// pods' logs get the Python stacks of all workers, status names the first suspect,
	// and the job recovers as from a worker that fails. Set it to well above the
	// longest time to the first step, with the loading of the model and compilation. Do
	// not set it for a script that never calls step(): each of its rounds is
	// restarted after that time. If unset, no round hangs before its first step.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && self.matches('[0-9]')",message="faults.hang.startTimeout must be a duration in whole hours, minutes and seconds, such as 0s, 10m or 1h: longer than any time from the start of a round to its first step()"
	StartTimeout string `json:"startTimeout,omitempty"`
}

// Lets the job train with fewer pods than it declares.
//
// +kubebuilder:validation:XValidation:rule="has(self.minPods)",fieldPath=".minPods",message="elastic.minPods must be set to the least number of pods that the training can go on with; leave out elastic if the job is never to shrink"
type Elastic struct {
	// The least number of pods that the job goes on with: it shrinks to those that
	// are left when ranks have been vacant for recovery.spareTimeout and no spare
	// waits, and it grows back at the next round for which there are more. Pods are
	// counted, not workers: each has launcher.nprocPerNode of them.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1",message="elastic.minPods must be at least 1: set it to the least number of pods that the training can go on with, or leave out elastic if the job is never to shrink"
	MinPods int32 `json:"minPods,omitempty"`
}

// Rollout servers of a training in RL. Workers that update them with understudy_rollout
// tell of each update; one that fails may leave servers that answer with mixed weights.
type Rollouts struct {
	// Whose Jobs are the servers, by name. Each Job is one replica, and its pod 0 the one
	// that is asked.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=63
	ReplicatedJobs []string `json:"replicatedJobs"`

	// What follows when an update fails and may not be tried again. RestartJob: the pods
	// that train fail, and failurePolicy restarts the job. RestartRollouts: the servers
	// alone are made anew, at the cost of one restart of failurePolicy, and the training
	// goes on. Default: RestartJob.
	// +optional
	// +kubebuilder:default=RestartJob
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self in ['RestartJob', 'RestartRollouts']",message="rollouts.onFailedUpdate must be RestartJob or RestartRollouts: set it to what follows when an update fails, or leave it out"
	OnFailedUpdate string `json:"onFailedUpdate,omitempty"`

	// How many failed updates in a row are left to the worker to try again. Default: 0.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 1000",message="rollouts.maxRetries must be 0 to 1000: the failed updates in a row that a worker may try again"
	MaxRetries int32 `json:"maxRetries,omitempty"`

	// A gateway in front of each server, in its pod, which lets requests through only while
	// the weights are those of one whole update. Left out: none is added.
	// +optional
	Gateway *RolloutGateway `json:"gateway,omitempty"`
}

// A gateway in front of each rollout server.
//
// +kubebuilder:validation:XValidation:rule="self.enginePort != self.port",fieldPath=".port",message="rollouts.gateway.port must be another port than enginePort, where the server itself listens in the same pod: change one of them"
type RolloutGateway struct {
	// Port that the server listens on.
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 65535",message="rollouts.gateway.enginePort must be 1 to 65535: the port that the server listens on"
	EnginePort int32 `json:"enginePort"`

	// Port that the gateway listens on, and clients ask. Default: 8080.
	// +optional
	// +kubebuilder:default=8080
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 65535",message="rollouts.gateway.port must be 1 to 65535: the port that clients ask"
	Port int32 `json:"port,omitempty"`

	// What becomes of requests under way when an update begins. Abort: they are ended. Await:
	// they are waited for, a minute at most. Default: Abort.
	// +optional
	// +kubebuilder:default=Abort
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self in ['Abort', 'Await']",message="rollouts.gateway.inFlight must be Abort or Await: set it to what becomes of requests when an update begins, or leave it out"
	InFlight string `json:"inFlight,omitempty"`

	// Version of the weights that the servers start with, if these may be asked. Left out:
	// they are asked from the first update on.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	InitialVersion string `json:"initialVersion,omitempty"`
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

	// How long the healthy workers of a round may run on when a fault ends it: a
	// duration such as 5s or 1m. Workers that handle SIGTERM get it first; what is left
	// gets SIGKILL. It gives time for dumps of NCCL's flight recorder, core files and
	// uploads of checkpoints, and each recovery takes that much longer unless all
	// workers end sooner. Default: 0s, and 5s where the trainer's environment asks
	// for dumps of the flight recorder (TORCH_NCCL_DUMP_ON_TIMEOUT,
	// TORCH_FR_BUFFER_SIZE, TORCH_NCCL_TRACE_BUFFER_SIZE). It means nothing with
	// launcher.mode Torchrun: torchrun ends its workers itself.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && self.matches('[0-9]') && duration(self) <= duration('1h')",message="recovery.workerGrace must be a duration of at most 1h in whole hours, minutes and seconds, such as 0s, 5s or 1m: how long healthy workers may run on when a fault ends their round"
	WorkerGrace string `json:"workerGrace,omitempty"`

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
	// +kubebuilder:validation:XValidation:rule="self == 'Off' || (self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && self.matches('[0-9]') && duration(self) >= duration('10s'))",message="recovery.coordinatorLossTimeout must be Off, or a duration of at least 10s in whole hours, minutes and seconds, such as 30s or 2m: after so long without a coordinator a pod ends its workers"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="recovery.coordinatorLossTimeout is immutable, because pods keep the one that they were created with: delete the TrainingJob and create it anew"
	CoordinatorLossTimeout string `json:"coordinatorLossTimeout,omitempty"`

	// For how long a pod's launcher may not respond, or its workers may outlive SIGKILL
	// (they sleep uninterruptibly in the kernel), before the pod is replaced: a duration
	// of at least 5s. It cannot be changed after creation. Default: 15s.
	// +optional
	// +kubebuilder:default="15s"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && self.matches('[0-9]') && duration(self) >= duration('5s')",message="recovery.launcherTimeout must be a duration of at least 5s in whole hours, minutes and seconds, such as 15s or 1m: a pod whose launcher does not respond for so long is replaced"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="recovery.launcherTimeout is immutable, because pods keep the one that they were created with: delete the TrainingJob and recreate it"
	LauncherTimeout string `json:"launcherTimeout,omitempty"`
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

	// After so many rounds in a row in which all ranks fail before the first step,
	// with the same exception, the job fails: no restart and no other node helps such
	// a script. Numbers in the exception's text are ignored. Where the exception is
	// not known, the exit code counts: a launcher knows it from a worker that its
	// fork server has forked, or from torch's error file. 0: such rounds go on until
	// inPlace.maxRestarts are spent. Has no effect with max: 0s. Default: 0.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:XValidation:rule="self >= 0",message="recovery.backoff.maxIdenticalFailures must be 0 or more: after so many rounds in a row in which all ranks fail with the same exception before the first step the job fails; 0: never"
	MaxIdenticalFailures int32 `json:"maxIdenticalFailures,omitempty"`
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

	// When the Jobs of the launcher's pods began, whose activeDeadlineSeconds count from
	// then. Empty where they have none, and while they are suspended or wait for quota.
	// +optional
	AttemptStartTime *metav1.Time `json:"attemptStartTime,omitempty"`

	// When the job ended.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`

	// Restarts of the whole job so far, as failurePolicy says. What the launcher recovers
	// from is counted in recoveriesByStrategy.
	// +optional
	Restarts int32 `json:"restarts,omitempty"`

	// Of the restarts, those that failurePolicy.maxRestarts limits.
	// +optional
	RestartsCountTowardsMax int32 `json:"restartsCountTowardsMax,omitempty"`

	// Jobs of each replicatedJob, by what they are doing.
	// +optional
	// +listType=map
	// +listMapKey=name
	ReplicatedJobsStatus []ReplicatedJobStatus `json:"replicatedJobsStatus,omitempty"`

	// Members: the pods of the job that the coordinator knows; without a launcher,
	// the pods of its Jobs.
	// +optional
	Members *MembersStatus `json:"members,omitempty"`

	// Spares: the members that wait.
	// +optional
	Spares *SparesStatus `json:"spares,omitempty"`

	// Pods that were created as spares, as their names say, and hold ranks: at most 20. The
	// label understudy.dev/role says it of each pod: active or spare.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=20
	PromotedSpares []PromotedSpare `json:"promotedSpares,omitempty"`

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

	// Of an InjectedJob: the address of the coordinator's Service, which the Secret of its
	// pods contains. A Service that is deleted is created again with this address.
	// +optional
	CoordinatorAddress string `json:"coordinatorAddress,omitempty"`

	// Rollout servers, where workers have told of any.
	// +optional
	Rollouts *RolloutsStatus `json:"rollouts,omitempty"`

	// Recoveries of the training so far, by strategy. Restarts of rollouts alone
	// (onFailedUpdate: RestartRollouts) are counted in replicatedJobsStatus.
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

	// Nodes that the job's new pods are kept off, and why: at most 20, those that have pods
	// of the job first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=20
	AvoidedNodes []AvoidedNode `json:"avoidedNodes,omitempty"`
}

// A node that new pods are kept off.
type AvoidedNode struct {
	// Name of the node.
	Node string `json:"node"`

	// Who holds something against it: the name of a fault source, or memory for faults of
	// several jobs.
	Source string `json:"source"`

	// Hardware, Maintenance or Preemption. Empty for memory.
	// +optional
	Class string `json:"class,omitempty"`

	// Why, in the source's words.
	// +optional
	Reason string `json:"reason,omitempty"`

	// When that expires. Empty: not by itself.
	// +optional
	Until *metav1.Time `json:"until,omitempty"`

	// Whether a pod may still be put there where nothing else is free.
	// +optional
	Preferred bool `json:"preferred,omitempty"`

	// Pods of the job that run there all the same: at most 5.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=5
	Pods []string `json:"pods,omitempty"`
}

// What the job is doing.
// +kubebuilder:validation:Enum=Pending;Starting;Running;Recovering;Restarting;Suspended;Succeeded;Failed
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

	// Restarts of each Job alone, by its index. Empty where there were none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	JobRestarts []int32 `json:"jobRestarts,omitempty"`

	// Of these, those that failurePolicy.maxRestarts limits.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	JobRestartsCountTowardsMax []int32 `json:"jobRestartsCountTowardsMax,omitempty"`
}

// Members, counted. A member is one pod of the job, seen by the coordinator
// through its sidecar. Without a launcher there are none, and the pods of the Jobs
// are counted, as the Jobs' status counts them.
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

// A pod that was created as a spare and holds a rank.
type PromotedSpare struct {
	// Name of the pod.
	Pod string `json:"pod"`

	// The group rank that it holds.
	GroupRank int32 `json:"groupRank"`
}

// Rollout servers, counted by what is known of their weights, as the workers tell that
// update them.
type RolloutsStatus struct {
	// Replicas with the weights of one whole update.
	// +optional
	Fresh int32 `json:"fresh"`

	// Replicas in an update.
	// +optional
	Updating int32 `json:"updating"`

	// Replicas whose weights may be mixed, or are not known: they are asked nothing until
	// an update is whole.
	// +optional
	Uncertain int32 `json:"uncertain"`

	// Version of the newest whole update.
	// +optional
	Version string `json:"version,omitempty"`

	// The newest update, if it failed and none was begun after it.
	// +optional
	Failure *UpdateFailure `json:"failure,omitempty"`

	// The newest failed update for which replicas were restarted.
	// +optional
	RestartedFor string `json:"restartedFor,omitempty"`
}

// A weight update that failed.
type UpdateFailure struct {
	// Its id.
	Update string `json:"update"`

	// Version of the weights that it was to bring.
	// +optional
	Version string `json:"version,omitempty"`

	// What was raised first.
	// +optional
	Message string `json:"message,omitempty"`

	// Updates of this worker that have failed since its last whole one.
	// +optional
	InARow int32 `json:"inARow"`

	// When it failed.
	// +optional
	At *metav1.MicroTime `json:"at,omitempty"`
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

	// The newest epoch of pods that were there before the job restarted or was
	// suspended: what they say does not count any more.
	// +optional
	FormerEpoch int64 `json:"formerEpoch,omitempty"`

	// The formerEpoch of the attempt before this one, 0 of the first attempt: the operator
	// deletes the Secret of that attempt. Empty in the first attempt.
	// +optional
	PreviousAttempt *int64 `json:"previousAttempt,omitempty"`

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

	// When all workers ran again, in a job whose workers have never reported a step: the recovery ends with this.
	// +optional
	RunningAt *metav1.MicroTime `json:"runningAt,omitempty"`

	// When training made its first step again. Empty while the recovery lasts, and if the workers report no steps.
	// +optional
	ResumedAt *metav1.MicroTime `json:"resumedAt,omitempty"`

	// For how long training paused: from the last step before the fault to the first step after it, as a pod measured
	// that made both. If no such pod is left: from detectedAt to resumedAt. Empty without resumedAt.
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
