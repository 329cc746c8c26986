"""`understudy local`: a job's launchers, sidecars and coordinator as plain processes of one Linux machine.

__main__.py   the command line
options.py    what may be asked for
preflight.py  what cannot start is refused
run_folder.py where a run keeps its files, and how others find it
job.py        the options as the TrainingJob that the operator's plan knows (pure)
manifest.py   a pod's manifest as commands and environments of two processes (pure)
keeper.py     the process that the user starts, and that ends what outlives the run
orphans.py    kills what a killed process leaves behind
process.py    one process of a run, and its output by lines
local_pod.py  a pod: a sidecar, a launcher, and what a kubelet does about them
cluster.py    the operator's plan, with processes in place of pods
directory.py  what the coordinator's Service is in a cluster: tells callers where to go
workers.py    finds the process of a rank
tracebacks.py shows each of them once (pure)
members.py    its members, as people are told of them
control.py    `understudy local kill` and `show`, and the run that they speak to
view.py       what is seen of it in a terminal
"""
