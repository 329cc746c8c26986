"""The metrics for Prometheus: counted at the event, or read from the store at a scrape (docs/reference/metrics.md).

Rules: no label has the name of an object, a node, a pod or a namespace, so that there are as many series at ten jobs as
at ten thousand. Nothing is gone through in a pass for metrics alone: what is counted, the pass knows; what is read on
a scrape, are jobs, pools and nodes, and never pods. Counters begin at 0 with each process.
"""
