"""`understudy local`: a job's launchers, sidecars and coordinator as plain processes of one Linux machine.

run.py            runs a job, and asks an active run; the command line is understudy_cli/local.py
options.py        the options, checked
preflight.py      rejects a command that cannot start
run_folder.py     the files of a run, and how other processes find it
training_job.py   the options as a TrainingJob for the operator's plan (pure)
manifest.py       a pod's manifest as the commands and environments of two processes (pure)
process_guard.py  the process that the user starts; it kills processes that outlive the run
orphans.py        kills the children of a killed process
process.py        one process of a run, and its output by lines
local_pod.py      a pod: a sidecar, a launcher, and the kubelet's work for them
cluster.py        the operator's plan, with processes in place of pods
directory.py      stands for the coordinator's Service: redirects callers to the coordinator
rank_process.py   finds the process of a rank
tracebacks.py     shows each traceback once (pure)
member_table.py   the members, for display
run_objects.py    a run as a TrainingJob, its pods and its events, for the views of understudy_cli
control.py        the questions to an active run, and their answers
view.py           the live view in a terminal
"""
