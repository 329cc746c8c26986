"""The metrics for Prometheus: counted at the event, or read from the store at a scrape (docs/reference/metrics.md).

Rules: no label contains the name of an object, a node, a pod or a namespace, so the number of series does not grow with
the number of jobs. A reconcile computes nothing for metrics alone: it counts facts that it knows anyway. A scrape
iterates over jobs, pools and nodes, but never over pods. Counters begin at 0 with each process.
"""
