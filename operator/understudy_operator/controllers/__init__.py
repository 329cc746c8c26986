"""Each controller observes, plans and applies; operator.py starts them all.

job_worker.py        one TrainingJob or InjectedJob. Start here
pool_worker.py       one HotSparePool
injected_jobs.py     creates the InjectedJob of pods that the webhook has changed
node_memory.py       remembers nodes on which jobs failed, across restarts of the operator
network_policies.py  keeps the NetworkPolicy of each job
reconcile_loop.py    when a worker reconciles; supervisor.py restarts what has failed
"""
