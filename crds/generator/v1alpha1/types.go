// Package v1alpha1 describes our kinds as Go types, because controller-gen reads
// Go: crds/ is generated from this folder (see generate.py). This file has the
// TrainingJob, hotsparepool.go the HotSparePool, injectedjob.go the InjectedJob,
// recovery.go the Recovery.
//
// Rules of this folder:
//   - It has only fields that this version uses. An unknown field is rejected.
//   - `kubectl explain` shows the comment on a type or field.
//   - A limit on a user's value is a CEL rule whose message names the field and
//     the fix. The rule is on the field to which the error should point.
//   - A list or string that a CEL rule iterates over has a maximum. Otherwise the
//     API server rejects the rule for its cost.
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
// has the fields of a JobSet (jobset.x-k8s.io/v1alpha2), and behaves as one if it
// has no launcher (spec.launcher).
//
// Pods are named <job>-<replicatedJob>-<jobIndex>-<podIndex>-<5 characters>, spares
// <job>-<replicatedJob>-spare-<5 characters>-<5 characters>, in at most 63.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=trainingjobs,singular=trainingjob,shortName=tj,categories=all
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`,description="State of the job"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.ready`,description="Members whose workers run, of those that the job needs; without a launcher, pods"
// +kubebuilder:printcolumn:name="Spares",type=integer,JSONPath=`.status.spares.ready`,description="Spares that wait, ready to take ranks"
// +kubebuilder:printcolumn:name="Recoveries",type=integer,JSONPath=`.status.recoveryCount`,description="Recoveries so far, over all strategies"
// +kubebuilder:printcolumn:name="Last Fault",type=string,JSONPath=`.status.lastRecovery.fault`,description="What broke last; kubectl get recoveries has all faults"
// +kubebuilder:printcolumn:name="Step",type=integer,JSONPath=`.status.progress.step`,description="The newest training step"
// +kubebuilder:printcolumn:name="FaultTolerant",type=string,JSONPath=`.status.conditions[?(@.type=="FaultTolerant")].status`,priority=1,description="Whether the job has a launcher"
// +kubebuilder:printcolumn:name="Suspended",type=boolean,JSONPath=`.spec.suspend`,priority=1,description="Whether the job is suspended"
// +kubebuilder:printcolumn:name="Active",type=integer,JSONPath=`.status.members.active`,priority=1,description="Members that hold ranks; without a launcher, pods of the Jobs that have not ended"
// +kubebuilder:printcolumn:name="Round",type=integer,JSONPath=`.status.round`,priority=1,description="The rendezvous that the workers are in, from 0; empty without a launcher"
// +kubebuilder:printcolumn:name="Restarts",type=integer,JSONPath=`.status.restarts`,priority=1,description="Restarts of the whole job by failurePolicy"
// +kubebuilder:printcolumn:name="InPlace",type=integer,JSONPath=`.status.recoveriesByStrategy.inPlace`,priority=1,description="Recoveries that restarted the workers in the same pods"
// +kubebuilder:printcolumn:name="Swaps",type=integer,JSONPath=`.status.recoveriesByStrategy.spareSwap`,priority=1,description="Recoveries by a spare"
// +kubebuilder:printcolumn:name="ETTR",type=number,JSONPath=`.status.goodput.ettr`,priority=1,description="Productive time divided by wall time"
// +kubebuilder:printcolumn:name="Coordinator",type=string,JSONPath=`.status.coordinator.podName`,priority=1,description="The pod whose sidecar is the coordinator"
// +kubebuilder:printcolumn:name="Promoted",type=string,JSONPath=`.status.promotedSpares`,priority=1,description="Pods that were created as spares and hold ranks"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",fieldPath=".metadata.name",message="metadata.name must be a DNS label, because Services and hostnames are named after it: use lower-case letters, digits and '-', start with a letter, and leave out dots"
// +kubebuilder:validation:XValidation:rule="self.spec.replicatedJobs.all(j, size(self.metadata.name) + size(j.name) + size(string(j.replicas > 0 ? j.replicas - 1 : 0)) + (j.template.spec.completionMode == 'Indexed' ? size(string((has(j.template.spec.completions) ? j.template.spec.completions : j.template.spec.parallelism) > 0 ? (has(j.template.spec.completions) ? j.template.spec.completions : j.template.spec.parallelism) - 1 : 0)) : -7) <= 54)",fieldPath=".metadata.name",message="metadata.name is too long: pods are named <job>-<replicatedJob>-<jobIndex>-<podIndex>-<5 characters>, in at most 63 (with completionMode NonIndexed, Jobs are named <job>-<replicatedJob>-<jobIndex>); shorten metadata.name or replicatedJobs[].name"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.launcher) || self.spec.launcher.mode == 'Off' || self.spec.replicatedJobs.all(j, size(self.metadata.name) + size(j.name) <= 50)",fieldPath=".metadata.name",message="metadata.name is too long: spares are named <job>-<replicatedJob>-spare-<5 characters>-<5 characters>, in at most 63; shorten metadata.name or replicatedJobs[].name to at most 50 characters together"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.coordinator) || size(self.metadata.name) + size(self.spec.coordinator.replicatedJob) + size(string(self.spec.coordinator.jobIndex)) + size(string(self.spec.coordinator.podIndex)) + size(has(self.spec.network.subdomain) && size(self.spec.network.subdomain) > 0 ? self.spec.network.subdomain : self.metadata.name) <= 59",fieldPath=".spec.coordinator",message="coordinator: the label jobset.sigs.k8s.io/coordinator, <job>-<replicatedJob>-<jobIndex>-<podIndex>.<subdomain>, may have at most 63 characters: shorten metadata.name, replicatedJobs[].name or network.subdomain"
type TrainingJob struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What to run, and how to recover it.
	Spec TrainingJobSpec `json:"spec"`

	// The state that the operator last observed. Only the operator writes it.
	// +optional
	Status TrainingJobStatus `json:"status,omitempty"`
}

// What to run, and how to recover it.
//
// +kubebuilder:validation:XValidation:rule="size(self.replicatedJobs) > 0",fieldPath=".replicatedJobs",message="replicatedJobs must have at least one entry: add the Jobs that the job consists of"
// +kubebuilder:validation:XValidation:rule="!has(self.launcher) || self.launcher.mode == 'Off' || has(self.launcher.targetReplicatedJobs) || size(self.replicatedJobs) < 2",fieldPath=".launcher.targetReplicatedJobs",message="launcher.targetReplicatedJobs must be set if there are several replicatedJobs: list those whose pods train as one; all others run as in a JobSet"
// +kubebuilder:validation:XValidation:rule="!has(self.launcher) || !has(self.launcher.targetReplicatedJobs) || self.launcher.targetReplicatedJobs.all(t, self.replicatedJobs.exists(j, j.name == t))",fieldPath=".launcher.targetReplicatedJobs",message="launcher.targetReplicatedJobs must name entries of replicatedJobs: correct the name, or add the entry"
// +kubebuilder:validation:XValidation:rule="self.replicatedJobs.all(j, (!has(self.launcher) || self.launcher.mode == 'Off' || (has(self.launcher.targetReplicatedJobs) && !(j.name in self.launcher.targetReplicatedJobs)) || j.replicas >= 1))",fieldPath=".replicatedJobs",message="replicas must be at least 1 in a replicatedJob with a launcher: set it to the number of Jobs whose pods train, or take the replicatedJob out of launcher.targetReplicatedJobs"
// +kubebuilder:validation:XValidation:rule="self.replicatedJobs.all(j, (!has(self.launcher) || self.launcher.mode == 'Off' || (has(self.launcher.targetReplicatedJobs) && !(j.name in self.launcher.targetReplicatedJobs)) || (j.replicas <= 100000 && j.template.spec.parallelism >= 1 && j.template.spec.parallelism <= 100000)))",fieldPath=".replicatedJobs",message="parallelism must be 1 to 100000 in a replicatedJob with a launcher, and replicas at most 100000: set parallelism to the number of pods of each Job"
// +kubebuilder:validation:XValidation:rule="self.replicatedJobs.all(j, (!has(self.launcher) || self.launcher.mode == 'Off' || (has(self.launcher.targetReplicatedJobs) && !(j.name in self.launcher.targetReplicatedJobs)) || (!has(j.template.spec.completions) || j.template.spec.completions == j.template.spec.parallelism)))",fieldPath=".replicatedJobs",message="completions must equal parallelism in a replicatedJob with a launcher, because all pods of a training run at the same time: set both to the same number, or leave completions out"
// +kubebuilder:validation:XValidation:rule="self.replicatedJobs.all(j, (!has(self.launcher) || self.launcher.mode == 'Off' || (has(self.launcher.targetReplicatedJobs) && !(j.name in self.launcher.targetReplicatedJobs)) || j.template.spec.completionMode == 'Indexed'))",fieldPath=".replicatedJobs",message="completionMode must be Indexed in a replicatedJob with a launcher, because each pod of a training has its own ranks: set it to Indexed, or leave it out"
// +kubebuilder:validation:XValidation:rule="self.replicatedJobs.all(j, (!has(self.launcher) || self.launcher.mode == 'Off' || (has(self.launcher.targetReplicatedJobs) && !(j.name in self.launcher.targetReplicatedJobs)) || (!has(self.launcher.container) || j.template.spec.template.spec.containers.exists(c, c.name == self.launcher.container))))",fieldPath=".launcher.container",message="launcher.container must name a container of replicatedJobs[].template.spec.template.spec.containers; leave it out to use the first"
// +kubebuilder:validation:XValidation:rule="self.replicatedJobs.all(j, (!has(self.launcher) || self.launcher.mode == 'Off' || (has(self.launcher.targetReplicatedJobs) && !(j.name in self.launcher.targetReplicatedJobs)) || (has(self.launcher.container) ? j.template.spec.template.spec.containers.all(c, c.name != self.launcher.container || (has(c.command) && size(c.command) > 0)) : (size(j.template.spec.template.spec.containers) > 0 && has(j.template.spec.template.spec.containers[0].command) && size(j.template.spec.template.spec.containers[0].command) > 0))))",fieldPath=".replicatedJobs",message="the trainer container needs a command, because the launcher cannot start an image's ENTRYPOINT: set command in the container that launcher.container names (default: the first)"
// +kubebuilder:validation:XValidation:rule="self.replicatedJobs.all(j, (!has(self.launcher) || self.launcher.mode == 'Off' || (has(self.launcher.targetReplicatedJobs) && !(j.name in self.launcher.targetReplicatedJobs)) || (has(self.launcher.container) ? j.template.spec.template.spec.containers.all(c, c.name != self.launcher.container || (!has(c.restartPolicyRules) && (!has(c.restartPolicy) || c.restartPolicy == 'Never'))) : (size(j.template.spec.template.spec.containers) == 0 || (!has(j.template.spec.template.spec.containers[0].restartPolicyRules) && (!has(j.template.spec.template.spec.containers[0].restartPolicy) || j.template.spec.template.spec.containers[0].restartPolicy == 'Never'))))))",fieldPath=".replicatedJobs",message="restartPolicy and restartPolicyRules cannot be set on the container of the launcher, which restarts workers itself (recovery.inPlace): remove them"
// +kubebuilder:validation:XValidation:rule="(has(self.launcher) ? self.launcher.mode != 'Off' : size(self.replicatedJobs) == 1) || (self.spares.replicas == 0 && !has(self.spares.pool))",fieldPath=".spares",message="spares need a launcher, which keeps them warm: set launcher.targetReplicatedJobs to the replicatedJobs that train, and mode to Auto, or remove spares"
// +kubebuilder:validation:XValidation:rule="(has(self.launcher) ? self.launcher.mode != 'Off' : size(self.replicatedJobs) == 1) || (!has(self.elastic) && !has(self.faults))",fieldPath=".launcher",message="elastic and faults need a launcher, which watches the workers: set launcher.targetReplicatedJobs to the replicatedJobs that train, and mode to Auto, or remove them"
// +kubebuilder:validation:XValidation:rule="!has(self.launcher) || !has(self.spares.replicatedJob) || (has(self.launcher.targetReplicatedJobs) ? self.spares.replicatedJob in self.launcher.targetReplicatedJobs : self.replicatedJobs.exists(j, j.name == self.spares.replicatedJob))",fieldPath=".spares.replicatedJob",message="spares.replicatedJob must be one whose pods train: set it to a name of launcher.targetReplicatedJobs, or leave it out to use the first"
// +kubebuilder:validation:XValidation:rule="!has(self.elastic) || !has(self.elastic.minPods) || self.elastic.minPods <= self.replicatedJobs.filter(j, !has(self.launcher) || !has(self.launcher.targetReplicatedJobs) || j.name in self.launcher.targetReplicatedJobs).map(j, j.replicas * j.template.spec.parallelism).sum()",fieldPath=".elastic.minPods",message="elastic.minPods must be at most the pods of the job, replicas times parallelism of replicatedJobs: lower it, or leave out elastic if the job must never shrink"
// +kubebuilder:validation:XValidation:rule="!has(self.termination.replicaGroups) || [ self.replicatedJobs.filter(j, !has(self.launcher) || !has(self.launcher.targetReplicatedJobs) || j.name in self.launcher.targetReplicatedJobs).map(j, j.replicas * j.template.spec.parallelism).sum() ].all(n, self.termination.replicaGroups.all(g, g.all(r, r >= 0 && r < n)))",fieldPath=".termination.replicaGroups",message="termination.replicaGroups must name pods by their group rank: each is 0 or more, and below the pods of the job, replicas times parallelism of replicatedJobs"
// +kubebuilder:validation:XValidation:rule="!has(self.launcher) || !has(self.launcher.mode) || self.launcher.mode != 'Torchrun' || !has(self.spares) || !has(self.spares.warmup)",fieldPath=".spares.warmup",message="spares.warmup has no effect with launcher.mode Torchrun, which starts nothing but torchrun: remove it, or set mode to Auto"
// +kubebuilder:validation:XValidation:rule="self.replicatedJobs.all(j, !has(j.dependsOn) || j.dependsOn.all(d, d.name != j.name && self.replicatedJobs.exists(e, e.name == d.name)))",fieldPath=".replicatedJobs",message="dependsOn must name another entry of replicatedJobs: correct the name, or add the entry"
// +kubebuilder:validation:XValidation:rule="!has(self.launcher) || !has(self.launcher.targetReplicatedJobs) || self.replicatedJobs.all(j, !(j.name in self.launcher.targetReplicatedJobs) || !has(j.dependsOn) || j.dependsOn.all(d, !(d.name in self.launcher.targetReplicatedJobs)))",fieldPath=".replicatedJobs",message="dependsOn cannot name another replicatedJob of launcher.targetReplicatedJobs, because their pods start as one: remove it"
// +kubebuilder:validation:XValidation:rule="self.startupPolicy.startupPolicyOrder != 'InOrder' || self.replicatedJobs.all(j, !has(j.dependsOn))",fieldPath=".startupPolicy",message="startupPolicy InOrder and dependsOn exclude each other: define the whole order in dependsOn, and remove startupPolicy"
// +kubebuilder:validation:XValidation:rule="!has(self.successPolicy.targetReplicatedJobs) || self.successPolicy.targetReplicatedJobs.all(t, self.replicatedJobs.exists(j, j.name == t))",fieldPath=".successPolicy.targetReplicatedJobs",message="successPolicy.targetReplicatedJobs must name entries of replicatedJobs: correct the name, or leave it out to mean all"
// +kubebuilder:validation:XValidation:rule="!has(self.failurePolicy) || !has(self.failurePolicy.rules) || self.failurePolicy.rules.all(r, !has(r.targetReplicatedJobs) || r.targetReplicatedJobs.all(t, self.replicatedJobs.exists(j, j.name == t)))",fieldPath=".failurePolicy.rules",message="failurePolicy.rules[].targetReplicatedJobs must name entries of replicatedJobs: correct the name, or leave it out to mean all"
// +kubebuilder:validation:XValidation:rule="!has(self.failurePolicy) || !has(self.failurePolicy.restartStrategy) || self.failurePolicy.restartStrategy != 'InPlaceRestart' || (has(self.launcher) ? self.launcher.mode != 'Off' : size(self.replicatedJobs) == 1)",fieldPath=".failurePolicy.restartStrategy",message="failurePolicy.restartStrategy InPlaceRestart needs a launcher, which restarts the workers in place: set launcher.targetReplicatedJobs to the replicatedJobs that train, and mode to Auto, or set it to Recreate"
// +kubebuilder:validation:XValidation:rule="!has(self.failurePolicy) || !has(self.failurePolicy.rules) || self.failurePolicy.rules.all(r, !(r.action in ['RestartJob', 'RestartJobAndIgnoreMaxRestarts'])) || self.replicatedJobs.all(j, j.replicas <= 1024)",fieldPath=".failurePolicy.rules",message="failurePolicy.rules[].action RestartJob needs replicatedJobs of at most 1024 replicas, whose restarts status counts one by one: lower replicas, or set the action to RestartJobSet"
// +kubebuilder:validation:XValidation:rule="self.replicatedJobs.all(j, j.replicas * j.template.spec.parallelism <= 2147483647)",fieldPath=".replicatedJobs",message="replicas times parallelism must be at most 2147483647, the most pods that can be counted: lower replicas or parallelism"
// +kubebuilder:validation:XValidation:rule="!has(self.coordinator) || self.replicatedJobs.exists(j, j.name == self.coordinator.replicatedJob && self.coordinator.jobIndex < j.replicas && self.coordinator.podIndex < (has(j.template.spec.completions) ? j.template.spec.completions : j.template.spec.parallelism) && j.template.spec.completionMode == 'Indexed')",fieldPath=".coordinator",message="coordinator must name a pod: replicatedJob an entry of replicatedJobs with completionMode Indexed, jobIndex below its replicas, podIndex below its completions"
// +kubebuilder:validation:XValidation:rule="(has(self.suspend) && self.suspend) || (has(oldSelf.suspend) && oldSelf.suspend) || (self.replicatedJobs == oldSelf.replicatedJobs && self.replicatedJobs.map(j, [[j.name], j.template.spec.template.spec.containers.map(c, c.name)]) == oldSelf.replicatedJobs.map(j, [[j.name], j.template.spec.template.spec.containers.map(c, c.name)]))",fieldPath=".replicatedJobs",message="replicatedJobs is immutable while the job runs: set suspend to true to change it, or delete the TrainingJob and recreate it"
// +kubebuilder:validation:XValidation:rule="(has(self.suspend) && self.suspend) || (has(oldSelf.suspend) && oldSelf.suspend) || (has(self.launcher) == has(oldSelf.launcher) && (!has(self.launcher) || self.launcher == oldSelf.launcher))",fieldPath=".launcher",message="launcher cannot be changed while the job runs, because pods keep the value that they were created with: set suspend to true to change it, or delete the TrainingJob and recreate it"
// +kubebuilder:validation:XValidation:rule="(has(oldSelf.suspend) && oldSelf.suspend) || (has(self.launcher) == has(oldSelf.launcher) && (!has(self.launcher) || (self.launcher.mode == 'Off') == (oldSelf.launcher.mode == 'Off')))",fieldPath=".launcher",message="launcher cannot be added, removed or switched Off or on in the request that suspends the job: suspend the job first"
// +kubebuilder:validation:XValidation:rule="(has(self.suspend) && self.suspend) || (has(oldSelf.suspend) && oldSelf.suspend) || (has(self.elastic) == has(oldSelf.elastic) && (!has(self.elastic) || self.elastic == oldSelf.elastic))",fieldPath=".elastic",message="elastic cannot be changed while the job runs, because pods keep the value that they were created with: set suspend to true to change it, or delete the TrainingJob and recreate it"
// +kubebuilder:validation:XValidation:rule="!has(self.snapshots) || (has(self.launcher) && (!has(self.launcher.mode) || self.launcher.mode != 'Torchrun'))",fieldPath=".snapshots",message="snapshots need a launcher of mode Auto or Wrap, which keeps their memory: add launcher: {nprocPerNode: <workers per pod>}, or remove snapshots"
// +kubebuilder:validation:XValidation:rule="(has(self.suspend) && self.suspend) || (has(oldSelf.suspend) && oldSelf.suspend) || (has(self.snapshots) == has(oldSelf.snapshots) && (!has(self.snapshots) || self.snapshots == oldSelf.snapshots))",fieldPath=".snapshots",message="snapshots cannot be changed while the job runs, because pods keep the value that they were created with: set suspend to true to change it, or delete the TrainingJob and recreate it"
// +kubebuilder:validation:XValidation:rule="(has(self.suspend) && self.suspend) || (has(oldSelf.suspend) && oldSelf.suspend) || (has(self.faults) == has(oldSelf.faults) && (!has(self.faults) || self.faults == oldSelf.faults))",fieldPath=".faults",message="faults cannot be changed while the job runs, because pods keep the value that they were created with: set suspend to true to change it, or delete the TrainingJob and recreate it"
// +kubebuilder:validation:XValidation:rule="!has(self.rollouts) || (has(self.launcher) && self.launcher.mode != 'Off')",fieldPath=".rollouts",message="rollouts need a launcher, whose workers report their weight updates: add launcher: {targetReplicatedJobs: [<replicatedJobs that train>]}, or remove rollouts"
// +kubebuilder:validation:XValidation:rule="!has(self.rollouts) || has(self.failurePolicy)",fieldPath=".rollouts",message="rollouts need a failurePolicy, which limits how often the job may restart for a failed update: add failurePolicy: {maxRestarts: <number>}"
// +kubebuilder:validation:XValidation:rule="!has(self.rollouts) || self.rollouts.replicatedJobs.all(t, self.replicatedJobs.exists(j, j.name == t) && !(has(self.launcher) && (!has(self.launcher.targetReplicatedJobs) || t in self.launcher.targetReplicatedJobs)))",fieldPath=".rollouts.replicatedJobs",message="rollouts.replicatedJobs must name entries of replicatedJobs that launcher.targetReplicatedJobs does not name: correct the name, add the entry, or take it out of launcher.targetReplicatedJobs"
// +kubebuilder:validation:XValidation:rule="!has(self.rollouts) || self.replicatedJobs.all(j, !(j.name in self.rollouts.replicatedJobs) || j.replicas <= 1024)",fieldPath=".rollouts.replicatedJobs",message="rollouts.replicatedJobs must have at most 1024 replicas each, whose restarts status counts one by one: lower replicas"
// +kubebuilder:validation:XValidation:rule="!has(self.rollouts) || !has(self.rollouts.gateway) || (self.network.enableDNSHostnames && self.replicatedJobs.all(j, !(j.name in self.rollouts.replicatedJobs) || j.template.spec.completionMode == 'Indexed'))",fieldPath=".rollouts.gateway",message="rollouts.gateway needs hostnames, by which workers find the servers: set network.enableDNSHostnames to true and completionMode of the rollouts to Indexed, or leave them out"
// +kubebuilder:validation:XValidation:rule="has(self.rollouts) == has(oldSelf.rollouts) && (!has(self.rollouts) || self.rollouts == oldSelf.rollouts)",fieldPath=".rollouts",message="rollouts is immutable, because pods keep the one that they were created with: delete the TrainingJob and recreate it"
// +kubebuilder:validation:XValidation:rule="has(self.failurePolicy) == has(oldSelf.failurePolicy) && (!has(self.failurePolicy) || self.failurePolicy == oldSelf.failurePolicy)",fieldPath=".failurePolicy",message="failurePolicy is immutable: delete the TrainingJob and recreate it"
// +kubebuilder:validation:XValidation:rule="has(self.coordinator) == has(oldSelf.coordinator) && (!has(self.coordinator) || self.coordinator == oldSelf.coordinator)",fieldPath=".coordinator",message="coordinator is immutable: delete the TrainingJob and recreate it"
// +kubebuilder:validation:XValidation:rule="has(self.managedBy) == has(oldSelf.managedBy) && (!has(self.managedBy) || self.managedBy == oldSelf.managedBy)",fieldPath=".managedBy",message="managedBy is immutable: delete the TrainingJob and recreate it"
// +kubebuilder:validation:XValidation:rule="has(self.volumeClaimPolicies) == has(oldSelf.volumeClaimPolicies) && (!has(self.volumeClaimPolicies) || self.volumeClaimPolicies == oldSelf.volumeClaimPolicies)",fieldPath=".volumeClaimPolicies",message="volumeClaimPolicies is immutable: delete the TrainingJob and recreate it"
// +kubebuilder:validation:XValidation:rule="(has(self.suspend) && self.suspend) || (has(oldSelf.suspend) && oldSelf.suspend) || self.termination == oldSelf.termination",fieldPath=".termination",message="termination cannot be changed while the job runs, because pods keep the value that they were created with: set suspend to true to change it, or delete the TrainingJob and recreate it"
// +kubebuilder:validation:XValidation:rule="(has(self.suspend) && self.suspend) || (has(oldSelf.suspend) && oldSelf.suspend) || self.recovery.coordinatorLossTimeout == oldSelf.recovery.coordinatorLossTimeout",fieldPath=".recovery.coordinatorLossTimeout",message="recovery.coordinatorLossTimeout cannot be changed while the job runs, because pods keep the value that they were created with: set suspend to true to change it, or delete the TrainingJob and recreate it"
// +kubebuilder:validation:XValidation:rule="(has(self.suspend) && self.suspend) || (has(oldSelf.suspend) && oldSelf.suspend) || self.recovery.launcherTimeout == oldSelf.recovery.launcherTimeout",fieldPath=".recovery.launcherTimeout",message="recovery.launcherTimeout cannot be changed while the job runs, because pods keep the value that they were created with: set suspend to true to change it, or delete the TrainingJob and recreate it"
// +kubebuilder:validation:XValidation:rule="self.network == oldSelf.network",fieldPath=".network",message="network is immutable: delete the TrainingJob and recreate it"
// +kubebuilder:validation:XValidation:rule="self.successPolicy == oldSelf.successPolicy",fieldPath=".successPolicy",message="successPolicy is immutable: delete the TrainingJob and recreate it"
// +kubebuilder:validation:XValidation:rule="self.startupPolicy == oldSelf.startupPolicy",fieldPath=".startupPolicy",message="startupPolicy is immutable: delete the TrainingJob and recreate it"
type TrainingJobSpec struct {
	// The Jobs that the job consists of, as in JobSet. With a launcher, the operator
	// itself runs the pods of the replicatedJobs in launcher.targetReplicatedJobs, and
	// these pods train as one. All other replicatedJobs become Jobs. May be changed only
	// while the job is suspended.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	ReplicatedJobs []ReplicatedJob `json:"replicatedJobs"`

	// How pods find each other, as in JobSet. It cannot be changed after creation.
	// +optional
	// +kubebuilder:default={}
	Network Network `json:"network,omitempty"`

	// When the job has succeeded, as in JobSet. Default: when all Jobs have succeeded. It
	// cannot be changed after creation.
	// +optional
	// +kubebuilder:default={operator: All}
	SuccessPolicy SuccessPolicy `json:"successPolicy,omitempty"`

	// What happens when a Job fails, as in JobSet. If unset, the job fails. When their
	// recovery is exhausted, the pods with a launcher fail as a Job does, with reason
	// BackoffLimitExceeded. It cannot be changed after creation.
	// +optional
	FailurePolicy *FailurePolicy `json:"failurePolicy,omitempty"`

	// In which order replicatedJobs start, as in JobSet. It cannot be changed after
	// creation.
	// +optional
	// +kubebuilder:default={startupPolicyOrder: AnyOrder}
	StartupPolicy StartupPolicy `json:"startupPolicy,omitempty"`

	// Whether the job is suspended: its pods are deleted, and recreated when suspend is
	// false. May be changed at any time.
	// +optional
	Suspend *bool `json:"suspend,omitempty"`

	// A pod whose hostname all Jobs and pods get in a label and an annotation,
	// jobset.sigs.k8s.io/coordinator, as in JobSet. It is unrelated to the coordinator in
	// status. It cannot be changed after creation.
	// +optional
	Coordinator *Coordinator `json:"coordinator,omitempty"`

	// The controller that manages this job. If unset, or understudy.dev/operator, this
	// operator manages it. With any other value, such as Kueue's for a job that runs in
	// another cluster, this operator ignores the job. It cannot be changed after
	// creation.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9/_.~%!$&()*+,;=:@-]+$')",message="managedBy must be a domain and a path, such as kueue.x-k8s.io/multikueue: correct it, or leave it out"
	ManagedBy *string `json:"managedBy,omitempty"`

	// How long after its end the job is deleted, with all of its objects. If unset, it is
	// never deleted. May be changed at any time.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 0",message="ttlSecondsAfterFinished must be 0 or more: the seconds after which a finished job is deleted, or leave it out to keep it"
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`

	// Volume claims that pods share, as in JobSet. Each claim is named <claim>-<job>, and
	// is a volume of every pod with a container that mounts a volume of this name. It
	// cannot be changed after creation.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:XValidation:rule="[self.map(p, has(p.templates) ? p.templates.map(t, has(t.metadata) && has(t.metadata.name) ? t.metadata.name : '') : [])].all(names, names.all(n, size(n) == 0 || names.exists_one(m, sets.intersects(n, m))))",message="volumeClaimPolicies[].templates[].metadata.name must be unique, because it names the claim: rename one of the templates, or remove it"
	VolumeClaimPolicies []VolumeClaimPolicy `json:"volumeClaimPolicies,omitempty"`

	// How the launcher starts the workers in each pod. If unset, the job has the launcher
	// {} where it can: it has one replicatedJob, whose first container has a command, and
	// no annotation understudy.dev/jobset-compatible: "true". Else it behaves as a JobSet.
	// The condition FaultTolerant has the reason. May be changed only while the job is
	// suspended.
	// +optional
	Launcher *Launcher `json:"launcher,omitempty"`

	// Warm pods that wait to take a lost pod's ranks. May be changed at any time.
	// +optional
	// +kubebuilder:default={}
	Spares Spares `json:"spares,omitempty"`

	// How the job recovers, and when it fails instead. May be changed at any time, except
	// coordinatorLossTimeout and launcherTimeout, which may be changed only while the job
	// is suspended. A change applies to pods that are created after it.
	// +optional
	// +kubebuilder:default={}
	Recovery RecoveryPolicy `json:"recovery,omitempty"`

	// How workers end when their pod is asked to end. May be changed only while the job
	// is suspended.
	// +optional
	// +kubebuilder:default={}
	Termination Termination `json:"termination,omitempty"`

	// What counts as a fault in addition to processes, pods and nodes that end. May be
	// changed only while the job is suspended.
	// +optional
	Faults *Faults `json:"faults,omitempty"`

	// Lets the job train with fewer pods than it declares if no spare takes a lost pod's
	// ranks. If unset, the job waits for a pod instead. May be changed only while the job
	// is suspended.
	// +optional
	Elastic *Elastic `json:"elastic,omitempty"`

	// Memory for snapshots of the training, from which workers restore after a fault. The
	// script saves them with understudy_torch.snapshot or understudy_jax.snapshot. If
	// unset, there are none. May be changed only while the job is suspended.
	// +optional
	Snapshots *Snapshots `json:"snapshots,omitempty"`

	// In RL: the servers whose weights the workers update, and what happens when an
	// update fails. It cannot be changed after creation.
	// +optional
	Rollouts *Rollouts `json:"rollouts,omitempty"`

	// Whether users who may change the job may break it on purpose, to see what a fault
	// would cost (understudy drill). Allowed or Forbidden. May be changed at any time.
	// +optional
	// +kubebuilder:default=Forbidden
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self in ['Allowed', 'Forbidden']",message="drills must be Allowed or Forbidden: set it to whether users may break the job on purpose, or leave it out"
	Drills string `json:"drills,omitempty"`
}

// A Job template and the number of Jobs to create from it.
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

	// Number of Jobs to create from the template. Default: 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:XValidation:rule="self >= 0",message="replicas must be 0 or more: set it to the number of Jobs to make of the template"
	Replicas int32 `json:"replicas,omitempty"`

	// The other entries that this one waits for before its Jobs are created.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=5
	DependsOn []DependsOn `json:"dependsOn,omitempty"`

	// The Job's template.
	Template JobTemplate `json:"template"`
}

// Another entry of replicatedJobs, and the state that it has to reach.
type DependsOn struct {
	// Name of the other entry.
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// Ready: all of its Jobs are ready, or have ended. Complete: all have succeeded.
	// +kubebuilder:validation:XValidation:rule="self in ['Ready', 'Complete']",message="dependsOn[].status must be Ready or Complete: set it to the state that the other replicatedJob has to reach"
	// +kubebuilder:validation:MaxLength=16
	Status string `json:"status"`
}

// Template of a Job.
type JobTemplate struct {
	// Labels and annotations of the Jobs. The pods that the operator runs directly get
	// them too.
	// +optional
	Metadata JobTemplateMetadata `json:"metadata,omitempty"`

	// The Job's spec, as in a Job: see kubectl explain job.spec. With a launcher,
	// completions equals parallelism, and fields that count failed pods, such as
	// backoffLimit, have no effect.
	// +kubebuilder:validation:XValidation:rule="!has(self.template.spec.restartPolicy) || self.template.spec.restartPolicy in ['Never', 'OnFailure']",fieldPath=".template.spec.restartPolicy",message="restartPolicy must be Never, OnFailure or unset, as in every Job; pods with a launcher always run with Never, and the launcher restarts their workers"
	Spec batchv1.JobSpec `json:"spec"`
}

// Labels and annotations of the objects that are created from a template. Other fields,
// which tools write there, are accepted and ignored.
type JobTemplateMetadata struct {
	// Labels to set.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`

	// Annotations to set.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`

	// Ignored: Jobs are named <job>-<replicatedJob>-<jobIndex>.
	// +optional
	Name string `json:"name,omitempty"`

	// Ignored: Jobs are in the namespace of the TrainingJob.
	// +optional
	Namespace string `json:"namespace,omitempty"`

	// Ignored: Jobs get no finalizers from their template.
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
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z]([-a-z0-9]*[a-z0-9])?)?$')",message="network.subdomain must be a DNS label, because it names a Service: use lower-case letters, digits and '-', start with a letter, or leave it out"
	Subdomain string `json:"subdomain,omitempty"`

	// Whether a hostname is known before its pod is ready. Default: true.
	// +optional
	// +kubebuilder:default=true
	PublishNotReadyAddresses *bool `json:"publishNotReadyAddresses,omitempty"`
}

// When the job has succeeded.
type SuccessPolicy struct {
	// All: when all of the Jobs have succeeded. Any: when one of them has.
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self in ['All', 'Any']",message="successPolicy.operator must be All or Any: set it to how many of the Jobs have to succeed"
	Operator string `json:"operator"`

	// Names of the replicatedJobs whose Jobs count. Default: all replicatedJobs.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=63
	TargetReplicatedJobs []string `json:"targetReplicatedJobs,omitempty"`
}

// What happens when a Job fails.
type FailurePolicy struct {
	// Number of restarts that are allowed, of the whole job and of single Jobs together.
	// One more failure fails the job. Default: 0.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 0",message="failurePolicy.maxRestarts must be 0 or more: the number of restarts that are allowed"
	MaxRestarts int32 `json:"maxRestarts,omitempty"`

	// How the whole job restarts. Recreate: each Job is recreated as soon as the old one
	// is gone. BlockingRecreate: Jobs are recreated when all old ones are gone.
	// InPlaceRestart: the same as Recreate, because pods with a launcher always restart
	// in place first. Default: Recreate.
	// +optional
	// +kubebuilder:default=Recreate
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self in ['Recreate', 'BlockingRecreate', 'InPlaceRestart']",message="failurePolicy.restartStrategy must be Recreate, BlockingRecreate or InPlaceRestart: set it to one of them, or leave it out"
	RestartStrategy string `json:"restartStrategy,omitempty"`

	// The first rule that applies to a failed Job decides what happens. If none applies,
	// the whole job restarts, which counts toward maxRestarts.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(r, !has(r.name) || size(r.name) == 0 || self.exists_one(s, has(s.name) && s.name == r.name))",message="failurePolicy.rules[].name must be unique: rename one of the rules, or leave out the name"
	// +kubebuilder:validation:XValidation:rule="[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31].all(i, i >= size(self) || (has(self[i].name) && size(self[i].name) > 0) || !self.exists(s, has(s.name) && s.name == ['failurePolicyRule0', 'failurePolicyRule1', 'failurePolicyRule2', 'failurePolicyRule3', 'failurePolicyRule4', 'failurePolicyRule5', 'failurePolicyRule6', 'failurePolicyRule7', 'failurePolicyRule8', 'failurePolicyRule9', 'failurePolicyRule10', 'failurePolicyRule11', 'failurePolicyRule12', 'failurePolicyRule13', 'failurePolicyRule14', 'failurePolicyRule15', 'failurePolicyRule16', 'failurePolicyRule17', 'failurePolicyRule18', 'failurePolicyRule19', 'failurePolicyRule20', 'failurePolicyRule21', 'failurePolicyRule22', 'failurePolicyRule23', 'failurePolicyRule24', 'failurePolicyRule25', 'failurePolicyRule26', 'failurePolicyRule27', 'failurePolicyRule28', 'failurePolicyRule29', 'failurePolicyRule30', 'failurePolicyRule31'][i]))",message="failurePolicy.rules[].name cannot be the name that another rule has by default, failurePolicyRule and its number from 0: rename the rule, or name the other one"
	Rules []FailurePolicyRule `json:"rules,omitempty"`
}

// What happens when a Job fails in a certain way.
type FailurePolicyRule struct {
	// Name of the rule, for events. Default: failurePolicyRule and its number.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self.matches('^([A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?)?$')",message="failurePolicy.rules[].name must start with a letter, continue with letters, digits, '_', ',' and ':', and not end with ',' or ':': correct it, or leave it out"
	Name string `json:"name,omitempty"`

	// What happens: the job fails, the job restarts, or only the failed Job restarts. The
	// actions with IgnoreMaxRestarts do not count toward maxRestarts.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self in ['FailJobSet', 'RestartJobSet', 'RestartJobSetAndIgnoreMaxRestarts', 'RestartJob', 'RestartJobAndIgnoreMaxRestarts']",message="failurePolicy.rules[].action must be FailJobSet, RestartJobSet, RestartJobSetAndIgnoreMaxRestarts, RestartJob or RestartJobAndIgnoreMaxRestarts: set it to the action to take"
	Action string `json:"action"`

	// Reasons of a Job's failure that the rule applies to. Default: any.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.all(r, r in ['BackoffLimitExceeded', 'DeadlineExceeded', 'FailedIndexes', 'MaxFailedIndexesExceeded', 'PodFailurePolicy'])",message="failurePolicy.rules[].onJobFailureReasons must be BackoffLimitExceeded, DeadlineExceeded, FailedIndexes, MaxFailedIndexesExceeded or PodFailurePolicy: these are the reasons that Jobs fail for"
	OnJobFailureReasons []string `json:"onJobFailureReasons,omitempty"`

	// Regular expressions (RE2). One of them has to match a part of the message of the
	// Job's failure. Default: any message.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	OnJobFailureMessagePatterns []string `json:"onJobFailureMessagePatterns,omitempty"`

	// Names of the replicatedJobs that the rule applies to. Default: all replicatedJobs.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=63
	TargetReplicatedJobs []string `json:"targetReplicatedJobs,omitempty"`
}

// In which order replicatedJobs start.
type StartupPolicy struct {
	// AnyOrder: all at the same time. InOrder: each starts when the Jobs of the previous
	// one are ready.
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self in ['AnyOrder', 'InOrder']",message="startupPolicy.startupPolicyOrder must be AnyOrder or InOrder: set it to how replicatedJobs start"
	StartupPolicyOrder string `json:"startupPolicyOrder"`
}

// A pod whose hostname all other pods get.
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

// Volume claims that pods share, and how long they are kept.
type VolumeClaimPolicy struct {
	// The claims. Each claim has the name of a volume that containers mount.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:XValidation:rule="self.all(t, has(t.metadata) && has(t.metadata.name) && size(t.metadata.name) > 0)",message="volumeClaimPolicies[].templates[].metadata.name must be set: it names the volume, and the claim <name>-<job>"
	// +kubebuilder:validation:XValidation:rule="self.all(t, !has(t.metadata) || !has(t.metadata.__namespace__) || size(t.metadata.__namespace__) == 0)",message="volumeClaimPolicies[].templates[].metadata.namespace cannot be set, because claims are in the namespace of the TrainingJob: remove it"
	// +kubebuilder:validation:XValidation:rule="self.all(t, !has(t.metadata) || !has(t.metadata.name) || self.exists_one(u, has(u.metadata) && has(u.metadata.name) && u.metadata.name == t.metadata.name))",message="volumeClaimPolicies[].templates[].metadata.name must be unique: rename one of the templates, or remove it"
	Templates []corev1.PersistentVolumeClaim `json:"templates,omitempty"`

	// How long the claims are kept.
	// +optional
	// +kubebuilder:default={}
	RetentionPolicy VolumeRetentionPolicy `json:"retentionPolicy,omitempty"`
}

// How long volume claims are kept.
type VolumeRetentionPolicy struct {
	// Whether the claims are deleted with the TrainingJob: Delete, or Retain. Default:
	// Delete.
	// +optional
	// +kubebuilder:default=Delete
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self in ['Delete', 'Retain']",message="volumeClaimPolicies[].retentionPolicy.whenDeleted must be Delete or Retain: set it to what happens to the claims when the TrainingJob is deleted"
	WhenDeleted string `json:"whenDeleted,omitempty"`
}

// How the launcher starts the workers. The launcher is the first process of the
// trainer container: it starts, stops and watches the workers of its pod.
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || self.mode != 'Torchrun' || !has(self.preload)",fieldPath=".preload",message="launcher.preload has no effect with mode Torchrun, whose workers are fresh processes: remove it, or set mode to Auto"
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || self.mode != 'Torchrun' || !has(self.python)",fieldPath=".python",message="launcher.python has no effect with mode Torchrun, which /bin/sh starts: remove it, or set mode to Auto"
type Launcher struct {
	// How the trainer container's command runs. Auto: if it calls torchrun, it runs once
	// in each pod, and the launcher runs the workers of that torchrun; else as Wrap.
	// Wrap: the launcher runs it once for each worker. Torchrun: it runs once in each
	// pod, and its torchrun runs the workers, with Understudy as its rendezvous; each
	// restart repeats their imports. Off: there is no launcher, and the job behaves as a
	// JobSet. Write "Off" in quotes: YAML reads Off as false. Default: Auto.
	// +optional
	// +kubebuilder:default=Auto
	// +kubebuilder:validation:XValidation:rule="self in ['Auto', 'Wrap', 'Torchrun', 'Off']",message="launcher.mode must be Auto, Wrap, Torchrun or Off: set it to Auto, or leave it out"
	Mode string `json:"mode,omitempty"`

	// Workers in each pod, mostly one for each GPU. Default: the number in torchrun's
	// --nproc-per-node, else the trainer container's limit of GPUs, else 1.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 128",message="launcher.nprocPerNode must be 1 to 128: set it to the number of workers in each pod, mostly its number of GPUs"
	NprocPerNode int32 `json:"nprocPerNode,omitempty"`

	// Names of the replicatedJobs whose pods train as one. Group ranks count through
	// these, in the order of replicatedJobs. All others become Jobs, as in a JobSet.
	// Required if there are several replicatedJobs. Default: the only one.
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

	// Modules that the fork server imports before the first round. Modules that are not
	// installed are skipped. Importing them may not start threads or use a GPU. Default:
	// torch, torch.distributed, torch._dynamo and numpy, and after the first step of the
	// first round the installed modules that its workers have imported.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=200
	// +kubebuilder:validation:XValidation:rule="self.all(m, m.matches('^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*$'))",message="launcher.preload must be names of Python modules, such as torch.distributed: remove all other words"
	Preload []string `json:"preload,omitempty"`

	// Path of a Python 3.9 or newer in the trainer container's image, with which the
	// launcher runs. Set it for an image without /bin/sh, or if the launcher is to run
	// with another Python than the command. Default: the Python that the command names,
	// else python3 or python on the PATH; /bin/sh looks for it.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.matches('^(/[A-Za-z0-9._+-]+)+$')",message="launcher.python must be the path of a Python in the image, such as /usr/bin/python3: correct it, or leave it out"
	Python string `json:"python,omitempty"`

	// Whether each line that a worker writes has its global rank as a prefix in the
	// container's log: [rank 3]. Set it to false if a program reads the lines, for
	// example as JSON. With mode Torchrun, torchrun writes the lines (see its option
	// --tee). Default: true.
	// +optional
	// +kubebuilder:default=true
	LogPrefix *bool `json:"logPrefix,omitempty"`

	// When a rank counts as slow: if each of ten steps in a row takes at least so long
	// because of it, in percent of the time that the step would take without this rank.
	// If this is so in three comparisons in a row, the condition SlowRank names the rank,
	// its pod and its node; nothing restarts. Between 110 and 1000, or 0 if no rank counts
	// as slow. Default: 150.
	// +optional
	// +kubebuilder:default=150
	// +kubebuilder:validation:XValidation:rule="self == 0 || (self >= 110 && self <= 1000)",message="launcher.slowRankPercent must be between 110 and 1000, or 0 to look for no slow rank: 150 means that a rank is slow if each step takes 1.5 times as long because of it"
	SlowRankPercent *int32 `json:"slowRankPercent,omitempty"`

	// Shared memory of the trainer container: a volume at /dev/shm. DataLoaders and NCCL
	// need more than the 64 MiB that containers have there by default. If the template
	// already mounts a volume at /dev/shm, none is added. If unset, none is added.
	// +optional
	SharedMemory *SharedMemory `json:"sharedMemory,omitempty"`
}

// A volume at /dev/shm.
//
// +kubebuilder:validation:XValidation:rule="has(self.size)",fieldPath=".size",message="launcher.sharedMemory.size must be set to the most that the trainer container may store in /dev/shm, such as 16Gi; remove sharedMemory if you need no volume"
type SharedMemory struct {
	// The most that the container may store there: a whole number with Mi, Gi or Ti. With
	// medium Memory, the stored bytes count toward the memory limit of the container.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^[1-9][0-9]{0,5}(Mi|Gi|Ti)$')",message="launcher.sharedMemory.size must be a whole number with Mi, Gi or Ti, such as 512Mi or 16Gi: the most that the trainer container may store in /dev/shm"
	Size string `json:"size,omitempty"`

	// Memory, or Disk. Disk uses the ephemeral storage of the node, which is slower.
	// Default: Memory.
	// +optional
	// +kubebuilder:default=Memory
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self in ['Memory', 'Disk']",message="launcher.sharedMemory.medium must be Memory or Disk: set it to one of them, or remove it (the default is Memory)"
	Medium string `json:"medium,omitempty"`
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

	// Name of a PriorityClass for the spares instead of the template's. With a lower
	// priority, a spare is preempted before a pod that was created for a rank. A pod's
	// priority does not change when it takes ranks. Default: the template's.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$')",message="spares.priorityClassName must be the name of a PriorityClass: use lower-case letters, digits, '-' and '.', or leave it out"
	PriorityClassName string `json:"priorityClassName,omitempty"`

	// Name of a node label, such as topology.kubernetes.io/zone or one of your racks: a
	// lost pod's ranks go to a spare on a node with the same value, if there is one. The
	// pod template, and not this field, decides where spares are scheduled. Default: any
	// spare takes them.
	// +optional
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')",message="spares.topologyKey must be the name of a node label, such as topology.kubernetes.io/zone: set it to a label that your nodes have, or leave it out"
	TopologyKey string `json:"topologyKey,omitempty"`

	// Name of a HotSparePool in the same namespace. If the job has lost more pods than
	// its own spares can replace, it claims spares of that pool. If unset, it claims
	// none.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Pool string `json:"pool,omitempty"`

	// A command that each spare runs once.
	// +optional
	Warmup *Warmup `json:"warmup,omitempty"`
}

// A command that each spare runs once, for example to fill caches of compiled kernels or
// of files for the workers.
type Warmup struct {
	// The command and its arguments. It runs in the trainer container when torch is
	// imported, with the environment of the workers but without ranks. If a round needs
	// the spare, the command is killed. A failure is logged and has no other effect. A
	// change applies to spares that are created after it.
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=8192
	// +kubebuilder:validation:XValidation:rule="size(self) > 0 && size(self[0]) > 0",message="spares.warmup.command must be the words of a command, such as [python3, warmup.py]: name a program, or leave out warmup"
	Command []string `json:"command"`
}

// How workers end when their pod is asked to end.
type Termination struct {
	// Whether workers get SIGTERM and may save within the grace period. Auto: they do,
	// unless the pod's node is faulty, for example by its annotation
	// understudy.dev/faulty. On a faulty node they are killed at once, because a save on
	// broken hardware can hang or write a broken file. Always and Never: regardless of
	// the node. Default: Auto.
	// +optional
	// +kubebuilder:default=Auto
	// +kubebuilder:validation:XValidation:rule="self in ['Auto', 'Always', 'Never']",message="termination.onSigterm must be Auto, Always or Never: set it to one of them, or leave it out"
	OnSigterm string `json:"onSigterm,omitempty"`

	// Pods that save the same shards, by group rank: [[0, 1], [2, 3]] means that pods 0
	// and 1 have one part, pods 2 and 3 another. When a pod leaves a faulty node, the
	// other pods may save without it if each of its groups has another pod on a healthy
	// node. Otherwise no pod saves. A pod in no group counts as one with shards that no
	// other pod has. If unset, no pod saves when a pod leaves a faulty node.
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

// What counts as a fault in addition to processes, pods and nodes that end.
type Faults struct {
	// Hang detection. Disabled if unset.
	// +optional
	Hang *Hang `json:"hang,omitempty"`

	// Path of a file on the nodes, such as /run/nologin. As long as it exists on a node,
	// SIGTERM to a pod of this job there ends its workers without a save, as on a faulty
	// node. The file has no effect on the assignment of ranks. The sidecar of every pod
	// mounts the file's folder read-only as a hostPath volume, which namespaces with the
	// pod security standards baseline and restricted reject. Default: none.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.matches('^(/[^/]+){2,}$') && !self.matches('/[.][.]?(/|$)')",message="faults.nodeFile must be an absolute path of a file in a folder, such as /run/nologin, without . and ..: the folder is mounted into the sidecar, and may not be the root of the node"
	NodeFile string `json:"nodeFile,omitempty"`

	// How strictly new pods avoid bad nodes: nodes with a verdict of a fault source, and
	// nodes that have failed several jobs. Prefer: a bad node is used only if no other
	// node is free, and an event reports it. Require: bad nodes are not used. Off: no
	// node is avoided. With Prefer and Require, no pod goes to a node with broken
	// hardware, because it would get no ranks there. status.avoidedNodes lists the nodes.
	// Default: Prefer.
	// +optional
	// +kubebuilder:default=Prefer
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self in ['Prefer', 'Require', 'Off']",message="faults.avoidNodes must be Prefer, Require or Off: set it to how strictly new pods avoid bad nodes, or leave it out"
	AvoidNodes string `json:"avoidNodes,omitempty"`

	// Whether a spare takes the ranks of a pod before the pod fails, when a fault source
	// reports the pod's node. NextCheckpoint: all workers get SIGTERM and may save first.
	// On broken hardware, workers are killed at once, and the others save only if
	// termination.replicaGroups shows that they have all shards. Now: the spare takes the
	// ranks at once, and no worker saves. Off: the pod trains until it fails or is
	// deleted. This is also the case if no spare on another node is available. Default:
	// Off.
	// +optional
	// +kubebuilder:default=Off
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self in ['Off', 'NextCheckpoint', 'Now']",message="faults.proactiveReplacement must be Off, NextCheckpoint or Now: set it to whether a pod on a bad node gives its ranks to a spare before it fails, or leave it out"
	ProactiveReplacement string `json:"proactiveReplacement,omitempty"`
}

// Hang detection.
type Hang struct {
	// A worker hangs if it has made a step in this round, and then makes none for this
	// time: a duration such as 90s, 10m or 1h. Steps are calls of understudy_torch.step(),
	// or else those of a torch optimizer. The pods' logs get the Python stacks of all
	// workers, status names the slowest rank, and the job recovers as from a worker that
	// fails. Set it well above the longest time between two steps, saves and evaluations
	// included, because a longer pause counts as a hang. Disabled if unset.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && self.matches('[1-9]')",message="faults.hang.stepTimeout must be a duration above zero in whole hours, minutes and seconds, such as 90s, 10m or 1h: longer than any time between two steps"
	StepTimeout string `json:"stepTimeout,omitempty"`

	// A round hangs if none of its workers makes a step within this time after the round
	// was formed: a duration such as 10m or 1h, or 0s for never. The pods' logs get the
	// Python stacks of all workers, status names the first suspect, and the job recovers
	// as from a worker that fails. Set it well above the longest time to the first step,
	// including the time to load the model and to compile. Do not set it for a script
	// that reports no steps: each of its rounds is restarted after that time. If unset, no
	// round hangs before its first step.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && self.matches('[0-9]')",message="faults.hang.startTimeout must be a duration in whole hours, minutes and seconds, such as 0s, 10m or 1h: longer than any time from the start of a round to its first step"
	StartTimeout string `json:"startTimeout,omitempty"`
}

// Memory for snapshots of the training.
//
// +kubebuilder:validation:XValidation:rule="has(self.size)",fieldPath=".size",message="snapshots.size must be set to the largest state of one worker, such as 20Gi; leave out snapshots if the script saves none"
type Snapshots struct {
	// The memory for the state of one worker: a whole number with Mi, Gi or Ti. Each
	// worker has two of them, and two for each copy that the pod keeps. So a pod needs
	// 2 x size x launcher.nprocPerNode x (1 + copies) in addition to what it needs without
	// snapshots. The memory counts as the trainer container's.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^[1-9][0-9]{0,5}(Mi|Gi|Ti)$')",message="snapshots.size must be a whole number with Mi, Gi or Ti, such as 512Mi or 20Gi: the memory for the state of one worker"
	Size string `json:"size,omitempty"`

	// Of so many calls of snapshot.save(), one is stored: the first, and then each one of
	// that number. Default: 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 100000",message="snapshots.every must be 1 to 100000: of so many calls of snapshot.save(), one is stored"
	Every int32 `json:"every,omitempty"`

	// Other pods that keep a copy of each snapshot, so that the loss of a pod or a node
	// costs a few steps. They are in another topology domain if there is one, otherwise on
	// another node. It must be lower than the number of pods that train. Default: 1, or 0
	// if only one pod trains.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 2",message="snapshots.copies must be 0 to 2: the number of other pods that keep a copy of each snapshot"
	Copies *int32 `json:"copies,omitempty"`

	// Snapshots on storage. A process of the trainer container writes them in the
	// background, and snapshot.load() restores the newest one if no snapshot is left in
	// memory. If unset, there are none.
	// +optional
	Storage *SnapshotStorage `json:"storage,omitempty"`
}

// Snapshots on storage.
//
// +kubebuilder:validation:XValidation:rule="has(self.path)",fieldPath=".path",message="snapshots.storage.path must be set to a folder on a volume that the trainer containers of all pods mount, such as /checkpoints/snapshots; leave out storage if no snapshot is to be written there"
type SnapshotStorage struct {
	// A folder on a volume that the trainer containers of all pods mount. It must be
	// another folder for each job. The workers create it.
	// +optional
	// +kubebuilder:validation:MaxLength=1000
	// +kubebuilder:validation:XValidation:rule="self.matches('^(/[^/]+)+$') && !self.matches('/[.][.]?(/|$)')",message="snapshots.storage.path must be an absolute path of a folder, such as /checkpoints/snapshots, without . and ..: URLs are not supported, so mount the storage as a volume"
	Path string `json:"path,omitempty"`

	// Of so many steps, the first one that is saved is written: with 1000, the first
	// snapshot of step 1000 or later, of step 2000 or later, and so on. Default: 1000.
	// +optional
	// +kubebuilder:default=1000
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 100000000",message="snapshots.storage.every must be 1 to 100000000: the number of steps between two snapshots on storage"
	Every int32 `json:"every,omitempty"`

	// The number of complete snapshots that are kept. Default: 2.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 1000",message="snapshots.storage.keep must be 1 to 1000: the number of complete snapshots that are kept on storage"
	Keep int32 `json:"keep,omitempty"`
}

// Lets the job train with fewer pods than it declares.
//
// +kubebuilder:validation:XValidation:rule="has(self.minPods)",fieldPath=".minPods",message="elastic.minPods must be set to the smallest number of pods that the training can continue with; leave out elastic if the job must never shrink"
type Elastic struct {
	// The smallest number of pods that the job trains with. If ranks have been vacant for
	// recovery.spareTimeout and no spare is available, the job shrinks to the remaining
	// pods. It grows again at the next round for which more pods are available. The
	// number counts pods, not workers: each pod has launcher.nprocPerNode workers.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1",message="elastic.minPods must be at least 1: set it to the smallest number of pods that the training can continue with, or leave out elastic if the job must never shrink"
	MinPods int32 `json:"minPods,omitempty"`
}

// Rollout servers of a training in RL. Workers that update them with understudy_rollout
// report each update. After a failed update, servers may answer with mixed weights.
type Rollouts struct {
	// Names of the replicatedJobs whose Jobs are the servers. Each Job is one replica,
	// and requests go to its pod 0.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=63
	ReplicatedJobs []string `json:"replicatedJobs"`

	// What happens when an update fails and may not be retried. RestartJob: the pods that
	// train fail, and failurePolicy restarts the job. RestartRollouts: only the servers
	// are recreated, which counts as one restart of failurePolicy, and the training
	// continues. Default: RestartJob.
	// +optional
	// +kubebuilder:default=RestartJob
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self in ['RestartJob', 'RestartRollouts']",message="rollouts.onFailedUpdate must be RestartJob or RestartRollouts: set it to what happens when an update fails, or leave it out"
	OnFailedUpdate string `json:"onFailedUpdate,omitempty"`

	// How many failed updates in a row the worker may retry. Default: 0.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 1000",message="rollouts.maxRetries must be 0 to 1000: the failed updates in a row that a worker may try again"
	MaxRetries int32 `json:"maxRetries,omitempty"`

	// A gateway in front of each server, in its pod, which lets requests through only
	// while the server has the weights of one complete update. If unset, there is no
	// gateway.
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

	// Port that the gateway listens on for clients. Default: 8080.
	// +optional
	// +kubebuilder:default=8080
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 65535",message="rollouts.gateway.port must be 1 to 65535: the port that clients ask"
	Port int32 `json:"port,omitempty"`

	// What happens to running requests when an update begins. Abort: the gateway ends
	// them. Wait: it waits for them, a minute at most. Default: Abort.
	// +optional
	// +kubebuilder:default=Abort
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self in ['Abort', 'Wait']",message="rollouts.gateway.inFlightRequests must be Abort or Wait: set it to what happens to requests when an update begins, or leave it out"
	InFlightRequests string `json:"inFlightRequests,omitempty"`

	// Version of the weights that the servers start with, if clients may use these
	// weights. If unset, the gateway lets requests through from the first update on.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	InitialVersion string `json:"initialVersion,omitempty"`
}

// How the job recovers.
type RecoveryPolicy struct {
	// Restarts of the workers in place, in the same pods.
	// +optional
	// +kubebuilder:default={}
	InPlace InPlaceRecovery `json:"inPlace,omitempty"`

	// Pauses between rounds that fail at their start.
	// +optional
	// +kubebuilder:default={}
	Backoff Backoff `json:"backoff,omitempty"`

	// How long the healthy workers of a round may continue to run when a fault ends it: a
	// duration such as 5s or 1m. Workers that handle SIGTERM get it first; workers that
	// remain get SIGKILL. This gives time for dumps of NCCL's flight recorder, core files
	// and uploads of checkpoints. Each recovery takes that much longer unless all workers
	// end sooner. Default: 0s, or 5s if the trainer's environment asks for dumps of the
	// flight recorder (TORCH_NCCL_DUMP_ON_TIMEOUT, TORCH_FR_BUFFER_SIZE,
	// TORCH_NCCL_TRACE_BUFFER_SIZE). It has no effect with launcher.mode Torchrun,
	// because torchrun ends its workers itself.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && self.matches('[0-9]') && duration(self) <= duration('1h')",message="recovery.workerGracePeriod must be a duration of at most 1h in whole hours, minutes and seconds, such as 0s, 5s or 1m: how long healthy workers may continue to run when a fault ends their round"
	WorkerGracePeriod string `json:"workerGracePeriod,omitempty"`

	// How long the vacant ranks of a job with elastic wait for a spare, or for a new pod,
	// before the job shrinks: a duration such as 30s, 5m or 1h30m. 0s: it shrinks at
	// once. A job without elastic waits without a limit. Default: 30s.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && self.matches('[0-9]')",message="recovery.spareTimeout must be a duration in whole hours, minutes and seconds, such as 0s, 30s or 1h30m: how long vacant ranks of an elastic job wait for a spare"
	SpareTimeout string `json:"spareTimeout,omitempty"`

	// How long a pod trains without a coordinator. Then it ends its workers, because
	// other pods may have taken its ranks: a duration of at least 10s, such as 30s or 2m.
	// If the pods cannot elect a coordinator, the operator appoints one after twice this
	// time. Off: pods train without a limit, and the operator waits for proof that the
	// missing pods have ended: their kubelet reports it, or their node is deleted or has
	// the taint node.kubernetes.io/out-of-service. May be changed only while the job is
	// suspended. Default: 30s.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self == 'Off' || (self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && self.matches('[0-9]') && duration(self) >= duration('10s'))",message="recovery.coordinatorLossTimeout must be Off, or a duration of at least 10s in whole hours, minutes and seconds, such as 30s or 2m: after this time without a coordinator, a pod ends its workers"
	CoordinatorLossTimeout string `json:"coordinatorLossTimeout,omitempty"`

	// The pod is replaced if its launcher does not respond for this time, or if workers
	// that sleep uninterruptibly in the kernel outlive SIGKILL for this time: a duration
	// of at least 5s. May be changed only while the job is suspended. Default: 15s.
	// +optional
	// +kubebuilder:default="15s"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && self.matches('[0-9]') && duration(self) >= duration('5s')",message="recovery.launcherTimeout must be a duration of at least 5s in whole hours, minutes and seconds, such as 15s or 1m: a pod whose launcher does not respond for this time is replaced"
	LauncherTimeout string `json:"launcherTimeout,omitempty"`

	// How many Recovery objects of the job are kept: the newest. 0: none is created.
	// Default: 200.
	// +optional
	// +kubebuilder:default=200
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 1000",message="recovery.historyLimit must be 0 to 1000: the number of Recovery objects of the job that are kept"
	HistoryLimit int32 `json:"historyLimit,omitempty"`
}

// Restarts in place: all workers restart in the same pods.
type InPlaceRecovery struct {
	// Number of restarts for faults of workers that are allowed within the window. After
	// these, the next fault replaces its pod, by a spare if there is one, and the fault
	// after that fails the job. Lost pods and nodes, and pods that are asked to end, do
	// not count. Default: the number in torchrun's --max-restarts, else 10.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 0",message="recovery.inPlace.maxRestarts must be 0 or more: the number of restarts in place that are allowed within recovery.inPlace.window"
	MaxRestarts int32 `json:"maxRestarts,omitempty"`

	// Number of restarts in place that the workers of one pod may cause within the
	// window. At their next fault the pod is replaced: its ranks go to a spare, or to a
	// new pod. If the rank fails on the other pod too, the rank itself is at fault, and
	// only maxRestarts applies. 0: the pod is replaced at its first fault. Default: 1.
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

// Pauses between rounds that fail at their start.
type Backoff struct {
	// If a worker fails before the first step of its round (if the script reports no
	// steps: within a minute), the next round starts after 1s. The pause doubles each
	// time, up to this limit: a duration such as 30s or 5m. 0s: no pause. A round that
	// makes a step resets the pause. After the loss of a pod or a node there is no pause.
	// Default: 30s.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && self.matches('[0-9]')",message="recovery.backoff.maxDelay must be a duration in whole hours, minutes and seconds, such as 0s, 30s or 5m: the longest pause between rounds that fail right at their start"
	MaxDelay string `json:"maxDelay,omitempty"`

	// The job fails after this number of rounds in a row in which all ranks fail before
	// the first step with the same exception, because no restart and no other node helps
	// such a script. Numbers in the exception's text are ignored. If the exception is
	// unknown, the exit code is compared. A launcher knows the exception of a worker that
	// its fork server has forked, or from torch's error file. 0: such rounds continue
	// until inPlace.maxRestarts are spent. Has no effect with maxDelay: 0s. Default: 0.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:XValidation:rule="self >= 0",message="recovery.backoff.maxIdenticalFailures must be 0 or more: after this number of rounds in a row in which all ranks fail with the same exception before the first step, the job fails; 0: never"
	MaxIdenticalFailures int32 `json:"maxIdenticalFailures,omitempty"`
}

// The state that the operator last observed. Fields that JobSet also has keep their names
// and types.
type TrainingJobStatus struct {
	// The generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Of an InjectedJob: kind and name of the object whose pods train, such as Job/train.
	// +optional
	Target string `json:"target,omitempty"`

	// Conditions of the job, with the reason and the time of the last change.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// State of the job.
	// +optional
	Phase Phase `json:"phase,omitempty"`

	// How the job ended: Completed or Failed. Empty before.
	// +optional
	TerminalState string `json:"terminalState,omitempty"`

	// When the first round began.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// When the pods with a launcher started, from which activeDeadlineSeconds of their
	// Jobs counts. Empty if they have no deadline, and while they are suspended or wait
	// for quota.
	// +optional
	AttemptStartTime *metav1.Time `json:"attemptStartTime,omitempty"`

	// When the job ended.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`

	// Restarts of the whole job by failurePolicy so far. Recoveries without such a restart
	// are counted in recoveriesByStrategy.
	// +optional
	Restarts int32 `json:"restarts,omitempty"`

	// Number of these restarts that count toward failurePolicy.maxRestarts.
	// +optional
	RestartsCountTowardsMax int32 `json:"restartsCountTowardsMax,omitempty"`

	// Jobs of each replicatedJob, by state.
	// +optional
	// +listType=map
	// +listMapKey=name
	ReplicatedJobsStatus []ReplicatedJobStatus `json:"replicatedJobsStatus,omitempty"`

	// Ready members of the desired ones, such as 3/4: a summary of members.
	// +optional
	Ready string `json:"ready,omitempty"`

	// Members: the pods of the job that the coordinator knows; without a launcher,
	// the pods of its Jobs.
	// +optional
	Members *MembersStatus `json:"members,omitempty"`

	// Spares: the members that hold no ranks.
	// +optional
	Spares *SparesStatus `json:"spares,omitempty"`

	// Pods that were created as spares, as their names say, and hold ranks: at most 20.
	// The label understudy.dev/role of each pod is active or spare.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=20
	PromotedSpares []PromotedSpare `json:"promotedSpares,omitempty"`

	// The newest round: the rendezvous that the workers are in, counted from 0.
	// +optional
	Round *int64 `json:"round,omitempty"`

	// The member whose sidecar is the coordinator.
	// +optional
	Coordinator *CoordinatorStatus `json:"coordinator,omitempty"`

	// Rollout servers, if workers have reported any.
	// +optional
	Rollouts *RolloutsStatus `json:"rollouts,omitempty"`

	// Recoveries of the training so far, by strategy. Restarts of rollouts alone
	// (onFailedUpdate: RestartRollouts) are counted in replicatedJobsStatus.
	// +optional
	RecoveriesByStrategy *RecoveriesByStrategy `json:"recoveriesByStrategy,omitempty"`

	// The sum of recoveriesByStrategy.
	// +optional
	RecoveryCount int32 `json:"recoveryCount"`

	// The newest recovery.
	// +optional
	LastRecovery *RecoveryStatus `json:"lastRecovery,omitempty"`

	// The newest ten recoveries, the oldest first: the operator continues from them. For
	// users, each recovery has an object of its own (kubectl get recoveries).
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	Recoveries []RecoveryStatus `json:"recoveries,omitempty"`

	// The newest drill: what was broken on purpose, or why nothing was.
	// +optional
	Drill *DrillStatus `json:"drill,omitempty"`

	// Progress of the training, if it reports its steps.
	// +optional
	Progress *Progress `json:"progress,omitempty"`

	// What the time of the job went to, and what faults have cost. Empty without a launcher.
	// +optional
	Goodput *GoodputStatus `json:"goodput,omitempty"`

	// Nodes that new pods of the job avoid, and why: at most 20, nodes with pods of the
	// job first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=20
	AvoidedNodes []AvoidedNode `json:"avoidedNodes,omitempty"`
}

// A drill.
type DrillStatus struct {
	// The value of the annotation understudy.dev/drill that asked for it. Each value is
	// handled once.
	Request string `json:"request"`

	// What was to be broken.
	// +optional
	Fault DrillFault `json:"fault,omitempty"`

	// When the operator decided.
	// +optional
	At *metav1.MicroTime `json:"at,omitempty"`

	// The pods that were broken.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	Pods []string `json:"pods,omitempty"`

	// Their node.
	// +optional
	Node string `json:"node,omitempty"`

	// The round that ran.
	// +optional
	Round *int64 `json:"round,omitempty"`

	// Why nothing was broken, and what to do.
	// +optional
	Refusal string `json:"refusal,omitempty"`
}

// Process: SIGKILL to a worker. Pod: the deletion of a pod without a grace period.
// Coordinator: the same for the pod of the coordinator. Hang: SIGSTOP to a worker. Node:
// the same deletion for all pods of the job on a node.
// +kubebuilder:validation:Enum=Process;Pod;Coordinator;Hang;Node
type DrillFault string

// A node that new pods avoid.
type AvoidedNode struct {
	// Name of the node.
	Node string `json:"node"`

	// Name of the fault source that reports the node, or memory if the node has failed
	// several jobs.
	Source string `json:"source"`

	// Hardware, Maintenance or Preemption. Empty for memory.
	// +optional
	Class string `json:"class,omitempty"`

	// The reason that the source gives.
	// +optional
	Reason string `json:"reason,omitempty"`

	// When the report expires. Empty if it does not expire.
	// +optional
	Until *metav1.Time `json:"until,omitempty"`

	// Whether a pod may use the node if no other node is free.
	// +optional
	UsableAsLastResort bool `json:"usableAsLastResort,omitempty"`

	// Pods of the job that run on the node: at most 5.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=5
	Pods []string `json:"pods,omitempty"`
}

// State of the job.
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

	// Restarts of single Jobs, by index. Empty if there were none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	JobRestarts []int32 `json:"jobRestarts,omitempty"`

	// Number of these restarts that count toward failurePolicy.maxRestarts.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	JobRestartsCountTowardsMax []int32 `json:"jobRestartsCountTowardsMax,omitempty"`
}

// Members, counted. A member is one pod of the job, seen by the coordinator through its
// sidecar. Without a launcher there are no members, and the numbers count the pods of the
// Jobs as the Jobs' status does.
type MembersStatus struct {
	// Members that the job declares. A job with elastic also trains with fewer.
	// +optional
	Desired int32 `json:"desired"`

	// Members that hold ranks in the newest round: fewer than desired while a job with
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

// Rollout servers, counted by the state of their weights, as reported by the workers that
// update them.
type RolloutsStatus struct {
	// Replicas with the weights of one complete update.
	// +optional
	Fresh int32 `json:"fresh"`

	// Replicas in an update.
	// +optional
	Updating int32 `json:"updating"`

	// Replicas whose weights may be mixed or are unknown. They get no requests until an
	// update is complete.
	// +optional
	Uncertain int32 `json:"uncertain"`

	// Version of the newest complete update.
	// +optional
	Version string `json:"version,omitempty"`

	// The newest update, if it has failed.
	// +optional
	Failure *UpdateFailure `json:"failure,omitempty"`

	// The newest failed update for which replicas were restarted.
	// +optional
	RestartedForUpdate string `json:"restartedForUpdate,omitempty"`
}

// A weight update that failed.
type UpdateFailure struct {
	// Its id.
	Update string `json:"update"`

	// Version of the weights of the update.
	// +optional
	Version string `json:"version,omitempty"`

	// The first error.
	// +optional
	Message string `json:"message,omitempty"`

	// Updates of this worker that have failed since its last complete one.
	// +optional
	ConsecutiveFailures int32 `json:"consecutiveFailures"`

	// When it failed.
	// +optional
	At *metav1.MicroTime `json:"at,omitempty"`
}

// The member whose sidecar is the coordinator.
type CoordinatorStatus struct {
	// Increases with each coordinator that the operator appoints.
	// +optional
	Epoch int64 `json:"epoch"`

	// Its term: 1 if the operator has appointed it, higher if the pods have elected it in
	// this epoch. Empty until the operator has connected to it.
	// +optional
	Term *int64 `json:"term,omitempty"`

	// The newest epoch of pods from before the restart or suspension of the job. The
	// operator ignores messages from these pods.
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

	// Host and port of the coordinator's Service, as the newest pods know them. A Service that
	// is deleted is created again with this address. A job of one pod without spares has no such Service.
	// +optional
	Address string `json:"address,omitempty"`
}

// Recoveries, counted by strategy.
type RecoveriesByStrategy struct {
	// The workers restarted in the same pods.
	// +optional
	InPlace int32 `json:"inPlace"`

	// A spare took the ranks of a pod that was lost or replaced.
	// +optional
	SpareSwap int32 `json:"spareSwap"`

	// A pod that was lost or replaced was recreated.
	// +optional
	PodRecreate int32 `json:"podRecreate"`

	// All pods of the job were recreated.
	// +optional
	JobRestart int32 `json:"jobRestart"`
}

// One recovery: from a fault to the first step of the next round.
type RecoveryStatus struct {
	// What broke.
	Fault Fault `json:"fault"`

	// How the job recovers. Empty while no pod is available for the lost ranks.
	// +optional
	Strategy Strategy `json:"strategy,omitempty"`

	// Why the job recovers with this strategy and not with a less disruptive one.
	// +optional
	Reason string `json:"reason,omitempty"`

	// The round that the recovery led to.
	// +optional
	Round *int64 `json:"round,omitempty"`

	// The worker, pod and node of the fault, and its symptoms.
	// +optional
	Cause *Cause `json:"cause,omitempty"`

	// When the fault was detected.
	// +optional
	DetectedAt *metav1.MicroTime `json:"detectedAt,omitempty"`

	// When all workers ran again, in a job whose workers have never reported a step. This
	// ends the recovery.
	// +optional
	RunningAt *metav1.MicroTime `json:"runningAt,omitempty"`

	// When training made its first step again. Empty while the recovery lasts, and if the workers report no steps.
	// +optional
	ResumedAt *metav1.MicroTime `json:"resumedAt,omitempty"`

	// How long training paused: from the last step before the fault to the first step
	// after it, measured by a pod that made both. If no such pod is left: from detectedAt
	// to resumedAt. Empty without resumedAt.
	// +optional
	PauseSeconds *float64 `json:"pauseSeconds,omitempty"`

	// In a job with snapshots: where the workers of the round restored the training from.
	// +optional
	RestoredFrom Tier `json:"restoredFrom,omitempty"`

	// Why the workers restored no snapshot.
	// +optional
	RestoreReason string `json:"restoreReason,omitempty"`

	// Steps that the training had made before the fault and made again after it, because
	// they were newer than what it restored. Empty if the coordinator does not know both
	// steps, or if one of them is counted (progress.counted).
	// +optional
	LostSteps *int32 `json:"lostSteps,omitempty"`
}

// Memory: snapshots in the memory of the pods. Peer: the same, and at least one pod has
// fetched a copy that another pod kept. Storage: the script's own checkpoint.
// +kubebuilder:validation:Enum=Memory;Peer;Storage
type Tier string

// What broke.
// +kubebuilder:validation:Enum=Process;Pod;Node;Hang;WeightUpdate
type Fault string

// How a job recovers.
// +kubebuilder:validation:Enum=InPlace;SpareSwap;PodRecreate;JobRestart
type Strategy string

// The first fault of a round. Later faults in the round are its consequences.
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

	// Exit code of the worker, if it exited by itself.
	// +optional
	ExitCode *int32 `json:"exitCode,omitempty"`

	// Signal that ended the worker, such as SIGKILL.
	// +optional
	Signal string `json:"signal,omitempty"`

	// Details of the fault, such as the worker's last error.
	// +optional
	Message string `json:"message,omitempty"`
}

// What the time of a job went to. Each second is in one part, so their sum is the wall
// time. A part is written when it ends: understudy goodput shows the parts until now.
type GoodputStatus struct {
	// When the job was created: the beginning of its wall time.
	StartTime *metav1.MicroTime `json:"startTime"`

	// The end of the time that seconds has. The current part has run since then.
	Since *metav1.MicroTime `json:"since"`

	// The current part. Empty after the end of the job.
	// +optional
	Part Part `json:"part,omitempty"`

	// The seconds of each part until since.
	// +optional
	Seconds *PartSeconds `json:"seconds,omitempty"`

	// Effective training time ratio: productive time divided by wall time, until the
	// newest step in progress. Empty before the first step, and if the script reports none.
	// If repeatedUnknown is true, the ratio may be lower.
	// +optional
	ETTR *float64 `json:"ettr,omitempty"`

	// GPUs, or other devices, that the pods with ranks request together.
	// +optional
	GPUs int32 `json:"gpus,omitempty"`

	// Ranks of the training.
	// +optional
	Ranks int32 `json:"ranks,omitempty"`

	// The fault that is the cause of the current part.
	// +optional
	Fault Fault `json:"fault,omitempty"`

	// The node of that fault.
	// +optional
	Node string `json:"node,omitempty"`

	// The newest step before the newest pause. Empty if its number is not known.
	// +optional
	NewestStep *int64 `json:"newestStep,omitempty"`

	// True if the training has made steps whose number is not known after a pause or a
	// suspension (progress.counted). They count as productive, but may be repeated steps.
	// +optional
	RepeatedUnknown bool `json:"repeatedUnknown,omitempty"`

	// What faults have cost, by fault and node: the parts detection, restart, capacity and
	// repeated. Faults at the same time count once, for the first of them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=40
	Lost []LostTime `json:"lost,omitempty"`
}

// Productive: the training makes new steps. Repeated: it makes steps again, after a restore
// from an older checkpoint or snapshot. Detection: from the last step to the detection of a
// fault. Restart: from there to the next step. Capacity: as Restart, while no pod can take a
// vacant rank. Starting: before the first step, and after a suspension. Suspended: the job
// is suspended, or waits for quota in a queue. Ending: after the last step of the job. WithoutSteps: all workers run, and the script has never reported a step.
// Unknown: no operator observed the job, and the coordinator of that time was lost.
// +kubebuilder:validation:Enum=Productive;Repeated;Detection;Restart;Capacity;Starting;Suspended;Ending;WithoutSteps;Unknown
type Part string

// Seconds by part.
type PartSeconds struct {
	// New steps were made.
	// +optional
	Productive float64 `json:"productive,omitempty"`

	// Steps were made again.
	// +optional
	Repeated float64 `json:"repeated,omitempty"`

	// From the last step before a fault to its detection.
	// +optional
	Detection float64 `json:"detection,omitempty"`

	// From the detection of a fault to the next step.
	// +optional
	Restart float64 `json:"restart,omitempty"`

	// As restart, while no pod could take a vacant rank.
	// +optional
	Capacity float64 `json:"capacity,omitempty"`

	// Before the first step, and after a suspension.
	// +optional
	Starting float64 `json:"starting,omitempty"`

	// The job was suspended, or waited for quota in a queue.
	// +optional
	Suspended float64 `json:"suspended,omitempty"`

	// After the last step of the job.
	// +optional
	Ending float64 `json:"ending,omitempty"`

	// All workers ran, and the script has never reported a step.
	// +optional
	WithoutSteps float64 `json:"withoutSteps,omitempty"`

	// No operator observed the job, and the coordinator of that time was lost.
	// +optional
	Unknown float64 `json:"unknown,omitempty"`
}

// What one kind of fault on one node has cost.
type LostTime struct {
	// What broke.
	Fault Fault `json:"fault"`

	// The node. Empty if it is not known.
	// +optional
	Node string `json:"node,omitempty"`

	// Seconds of the job.
	// +optional
	Seconds float64 `json:"seconds"`

	// Seconds times the GPUs, or other devices, of the job.
	// +optional
	GPUSeconds *float64 `json:"gpuSeconds,omitempty"`

	// For a job that requests no devices: seconds times its ranks.
	// +optional
	RankSeconds *float64 `json:"rankSeconds,omitempty"`
}

// Progress of the training.
type Progress struct {
	// The newest step that the workers reported. Of the running round if counted is true.
	// +optional
	Step int64 `json:"step"`

	// Steps of the whole training, if known.
	// +optional
	Total *int64 `json:"total,omitempty"`

	// When the step was reported.
	// +optional
	At *metav1.MicroTime `json:"at,omitempty"`

	// True if step counts from the start of the round, because the script does not call
	// step(), and its optimizer has no number. Such steps are not compared with those of
	// other rounds.
	// +optional
	Counted bool `json:"counted,omitempty"`

	// The newest snapshot in the memory of the pod of rank 0 when the step was reported. All
	// ranks save the same steps. A round after the failure of a worker restores it, or the
	// one before. Empty if that pod has none that a round could restore.
	// +optional
	Snapshot *SnapshotTime `json:"snapshot,omitempty"`

	// The newest snapshot of the running round that the pod of rank 0 had copied to the other
	// pods that keep its copies. If a pod or a node is lost, the next round restores about
	// this one. Empty until the first copy in the round, and without copies.
	// +optional
	CopiedSnapshot *SnapshotTime `json:"copiedSnapshot,omitempty"`
}

// A snapshot of the training.
type SnapshotTime struct {
	// The step that was saved.
	Step int64 `json:"step"`

	// When it was saved, by the clock of the pod that saved it.
	At metav1.MicroTime `json:"at"`
}
