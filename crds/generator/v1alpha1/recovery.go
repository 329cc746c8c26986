package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// A fault of a training job, and the recovery from it. The operator creates it when the
// fault is detected, and updates it until the recovery has ended. It is deleted with its
// job. Of each job the newest recovery.historyLimit (default: 200) are kept.
//
// Named <job>-<date>-<time>-<5 characters>, with the time of the fault in UTC, so that
// the recoveries of a job sort by time.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=recoveries,singular=recovery,categories=all
// +kubebuilder:printcolumn:name="Job",type=string,JSONPath=`.jobName`,description="The job"
// +kubebuilder:printcolumn:name="Fault",type=string,JSONPath=`.fault`,description="What broke"
// +kubebuilder:printcolumn:name="Pod",type=string,JSONPath=`.cause.pod`,description="The pod that failed first"
// +kubebuilder:printcolumn:name="Rank",type=integer,JSONPath=`.cause.rank`,description="The rank that failed first"
// +kubebuilder:printcolumn:name="Strategy",type=string,JSONPath=`.strategy`,description="How the job recovers"
// +kubebuilder:printcolumn:name="Outcome",type=string,JSONPath=`.outcome`,description="How the recovery ended; empty while it lasts"
// +kubebuilder:printcolumn:name="Pause",type=number,JSONPath=`.pauseSeconds`,description="How long training paused, in seconds"
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.cause.node`,priority=1,description="The node of the pod"
// +kubebuilder:printcolumn:name="Round",type=integer,JSONPath=`.round`,priority=1,description="The round that the recovery led to"
// +kubebuilder:printcolumn:name="GPU-Seconds",type=number,JSONPath=`.gpuSecondsLost`,priority=1,description="GPU time lost: the pause times the GPUs of the job, in seconds"
// +kubebuilder:printcolumn:name="Lost-Steps",type=integer,JSONPath=`.lostSteps`,priority=1,description="Training steps that were repeated"
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.cause.message`,priority=1,description="The error of the first failure"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.detectedAt`,description="Time since the fault"
type Recovery struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Name of the TrainingJob or InjectedJob, which owns this object.
	JobName string `json:"jobName"`

	// What broke.
	Fault Fault `json:"fault"`

	// The first failure. All other failures of the round are its consequences.
	// +optional
	Cause RecoveryCause `json:"cause,omitempty"`

	// Failures of other workers in the same round that were reported until the next round
	// began, in the order of their reports: at most 16.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	Consequences []Consequence `json:"consequences,omitempty"`

	// Number of the consequences that were reported. It may be more than the number of
	// consequences that are listed.
	// +optional
	ConsequenceCount int32 `json:"consequenceCount,omitempty"`

	// How the job recovers. Empty while no pod is available for the lost ranks.
	// +optional
	Strategy Strategy `json:"strategy,omitempty"`

	// Why the job recovers with this strategy and not with a less disruptive one.
	// +optional
	Reason string `json:"reason,omitempty"`

	// The round that the recovery leads to.
	// +optional
	Round *int64 `json:"round,omitempty"`

	// How the recovery ended. Empty while it lasts.
	// +optional
	Outcome RecoveryOutcome `json:"outcome,omitempty"`

	// When the fault was detected.
	DetectedAt metav1.MicroTime `json:"detectedAt"`

	// When all workers ran again, in a job whose workers have never reported a step.
	// +optional
	RunningAt *metav1.MicroTime `json:"runningAt,omitempty"`

	// When training made its first step again. Empty if the workers report no steps.
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
	LostSteps *int64 `json:"lostSteps,omitempty"`

	// GPU time lost, in seconds: pauseSeconds times the GPUs (or other devices) that the
	// pods with ranks request together. Empty if they request none, and without
	// pauseSeconds. Faults at the same time share one pause, so their sums count it
	// several times.
	// +optional
	GPUSecondsLost *float64 `json:"gpuSecondsLost,omitempty"`

	// For a job that requests no devices: pauseSeconds times the number of ranks.
	// +optional
	RankSecondsLost *float64 `json:"rankSecondsLost,omitempty"`
}

// How a recovery ended. Recovered: training continued. Failed: the job failed before.
// Suspended: the job was suspended before. Unknown: the operator has not seen the end,
// because many faults followed.
// +kubebuilder:validation:Enum=Recovered;Failed;Suspended;Unknown
type RecoveryOutcome string

// The first failure of a round.
type RecoveryCause struct {
	Cause `json:",inline"`

	// The newest part of the Python traceback of the worker, with its last frames: at most
	// 2,000 characters. Empty if the worker left none.
	// +optional
	// +kubebuilder:validation:MaxLength=2000
	Traceback string `json:"traceback,omitempty"`
}

// A failure that followed the first one.
type Consequence struct {
	// Rank of the worker.
	// +optional
	Rank *int32 `json:"rank,omitempty"`

	// Name of its pod.
	// +optional
	Pod string `json:"pod,omitempty"`

	// Exit code of the worker, if it exited by itself.
	// +optional
	ExitCode *int32 `json:"exitCode,omitempty"`

	// Signal that ended the worker, such as SIGABRT.
	// +optional
	Signal string `json:"signal,omitempty"`

	// Its last error: at most 200 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=200
	Message string `json:"message,omitempty"`
}
