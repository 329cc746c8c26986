"""The operator next to JobSet: durations and costs, on one API server, with nodes that kwok simulates.

plan, goals            the sessions and the goals (pure)
manifests, settings    the applied objects, and the configuration of the cluster's programs (pure)
audit, exposition      the API server's own records: its audit log, its metrics (pure)
network                a separate network, in which every pod's address is this machine
programs, cluster      etcd, API server, controller manager, scheduler, kwok, as processes
kube, watches          the benchmark's requests to the API server, and the objects that its watches have reported
sidecars               the simulated data plane: all pods' sidecars, including the coordinators
jobset                 the peer: pinned by jobset/go.mod, built into the cache
systems, session       how each system is started, and the cases that run with it
"""
