"""How long a rendezvous takes: the first round, the next one after a loss, and the office's succession; and at rest.

__main__     the command: runs the plan, keeps the samples, tells
plan         which sessions, in which order            goals    what is aimed at
understudy   sessions of ours; their processes: processes, whole_sidecar, members, operator_stand_in; network: nodes
peers        sessions of NVRx and of torch's own; their processes: participants; install gets them
"""
