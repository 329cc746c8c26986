"""The duration of a rendezvous: the first round, the next one after a loss, and a failover; and the cost at idle.

__main__     the command: runs the plan, stores the samples, prints the results
plan         the sessions, in their order              goals    the goals
understudy   sessions of ours; their processes: processes, whole_sidecar, members, operator_stand_in; network: nodes
peers        sessions of NVRx and of torch's own; their processes: participants; install gets them
"""
