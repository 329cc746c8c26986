"""The sidecar of every pod: the pod's member and, in one pod of a job, the coordinator.

membership/ makes all decisions, without I/O; server, client, launcher_link and probes act. An edge passes events to a
state machine and carries out its effects; no module in membership/ depends on the network.
"""
