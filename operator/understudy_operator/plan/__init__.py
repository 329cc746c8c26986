"""Decisions only: `reconcile(observed, now) -> Plan`. No I/O, no clock, no randomness, no Kubernetes client here.

One decision a file; each returns intents that carry their reason, which becomes the event, the condition or the log.
Folders from the top down; each imports only those below it (import-linter):

    reconcile.py   one reconcile of a job: asks the decisions below in order. Start here.
    status/        the parts that users read: status, conditions, events
    pool/          HotSparePools, and the claims of jobs
    world/         the pods that train, and the objects that they need
    injection/     pods of Jobs, JobSets and PyTorchJobs that train under Understudy
    jobset/        child Jobs, and the policies for start, success, failure and restart
    capacity/      how many pods a job needs now, and whether a queue has room for them
    leadership/    the coordinator of a job; the leader among the operator's replicas
    faults/        nodes that failed: remembered, avoided, annotated
    manifests/     the objects that the operator creates, as JSON
    intents.py     the values that decisions return
    facts/         the operator's knowledge. Nothing there decides
    verdicts/      the hardware of a node, from the fields of its Node object
    times/         points in time, durations, the clock of a reconcile
"""
