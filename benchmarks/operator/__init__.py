"""The operator next to JobSet: on one API server, with nodes that kwok plays, how long and at what cost.

plan, goals            what is run, and what is aimed at (pure)
manifests, settings    what is applied, and how the cluster's programs are set up (pure)
audit, exposition      what the API server says of itself: its audit log, its metrics (pure)
network                a network of the benchmark's own, in which every pod's address is this machine
programs, cluster      etcd, API server, controller manager, scheduler, kwok, as processes
kube, watches          the API server as the benchmark uses it, and what its watches have told
sidecars               the data plane, played: all pods' sidecars, and the coordinators among them
jobset                 the peer: pinned by jobset/go.mod, built into the cache
systems, session       each system as it is started, and what is done with it
"""
