package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// The pods of a Job, JobSet or PyTorchJob that train as one under Understudy, because
// their template has the label understudy.dev/inject. The operator creates it when it
// sees the first pod. It is deleted with that Job, JobSet or PyTorchJob.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=injectedjobs,singular=injectedjob,shortName=ij,categories=all
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Kind/Name",type=string,JSONPath=`.status.target`,description="The object whose pods train"
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`,description="State of the training"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.ready`,description="Members whose workers run, of those that the training needs"
// +kubebuilder:printcolumn:name="Spares",type=integer,JSONPath=`.status.spares.ready`,description="Spares that wait, ready to take ranks"
// +kubebuilder:printcolumn:name="Recoveries",type=integer,JSONPath=`.status.recoveryCount`,description="Recoveries so far, over all strategies"
// +kubebuilder:printcolumn:name="Last Fault",type=string,JSONPath=`.status.lastRecovery.fault`,description="What broke last; kubectl get recoveries has all faults"
// +kubebuilder:printcolumn:name="Step",type=integer,JSONPath=`.status.progress.step`,description="The newest training step"
// +kubebuilder:printcolumn:name="Active",type=integer,JSONPath=`.status.members.active`,priority=1,description="Members that hold ranks"
// +kubebuilder:printcolumn:name="Round",type=integer,JSONPath=`.status.round`,priority=1,description="The rendezvous that the workers are in, from 0"
// +kubebuilder:printcolumn:name="InPlace",type=integer,JSONPath=`.status.recoveriesByStrategy.inPlace`,priority=1,description="Recoveries that restarted the workers in the same pods"
// +kubebuilder:printcolumn:name="Swaps",type=integer,JSONPath=`.status.recoveriesByStrategy.spareSwap`,priority=1,description="Recoveries by a spare"
// +kubebuilder:printcolumn:name="ETTR",type=number,JSONPath=`.status.goodput.ettr`,priority=1,description="Productive time divided by wall time"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type InjectedJob struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// The facts that the operator has found. Only the operator writes it.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec is immutable, because it contains what the operator found when it saw the first pod: change the Job, JobSet or PyTorchJob, and recreate it"
	Spec InjectedJobSpec `json:"spec"`

	// The state that the operator last observed, as in a TrainingJob. Only the operator
	// writes it.
	// +optional
	Status TrainingJobStatus `json:"status,omitempty"`
}

// The object whose pods train, and the number of pods.
type InjectedJobSpec struct {
	// The object that the pods belong to.
	Target InjectedTarget `json:"target"`

	// Restarts of the whole JobSet before this attempt. Each attempt has its own
	// InjectedJob.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Attempt int32 `json:"attempt,omitempty"`

	// Pods with the label, spares included.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=20000
	Pods int32 `json:"pods"`

	// The pods that hold ranks: all but the spares.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=20000
	Members int32 `json:"members"`

	// Workers of each pod.
	// +kubebuilder:validation:Minimum=1
	NprocPerNode int32 `json:"nprocPerNode"`

	// The pods' termination grace period.
	// +optional
	// +kubebuilder:default=30
	TerminationGracePeriodSeconds int32 `json:"terminationGracePeriodSeconds,omitempty"`

	// Whether the pods have hostNetwork. Then the sidecar of each pod has a port of its
	// own.
	// +optional
	HostNetwork bool `json:"hostNetwork,omitempty"`

	// The pods of each template, in the order of their ranks.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	PodGroups []InjectedPodGroup `json:"podGroups"`

	// The annotations of the pods, with their names without understudy.dev/.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// A Job, JobSet or PyTorchJob.
type InjectedTarget struct {
	// Its API group and version.
	APIVersion string `json:"apiVersion"`

	// Its kind.
	// +kubebuilder:validation:Enum=Job;JobSet;PyTorchJob
	Kind string `json:"kind"`

	// Its name.
	Name string `json:"name"`

	// Its UID.
	UID string `json:"uid"`
}

// Pods of one template.
type InjectedPodGroup struct {
	// Name of the replicatedJob or of the replica type; pods, for a Job.
	Name string `json:"name"`

	// Group rank of its first pod.
	FirstGroupRank int32 `json:"firstGroupRank"`

	// Pods of each of its Jobs.
	PodsPerJob int32 `json:"podsPerJob"`
}
