"""The sidecar of every pod: the pod's member, and (in one pod of a job) the coordinator.

membership/ decides, purely; server, client, launcher_link and probes act. Data flows from an edge into a state
machine and its effects back out to an edge; nothing in membership/ knows that a network exists.
"""
