"""Each controller has three steps: observe (observe/), plan (plan/, pure) and apply (apply/). operator.py starts them.

    file                  observes                           plans                          applies
    --------------------  ---------------------------------  -----------------------------  --------------------
    job_worker.py         the store; answers of sidecars     reconcile.py                   executor.py, links
    pool_worker.py        the store                          pool/reconcile_pool.py         executor.py, pools.py
    injected_jobs.py      pods in the store; owners.py       injection/targets.py           injected_jobs.py
    node_memory.py        statuses in the store              faults/node_history.py         config_map.py
    network_policies.py   jobs in the store; lists           manifests/network_policy.py    network_policies.py

Start with job_worker.py. reconcile_loop.py decides when a worker reconciles; supervisor.py restarts what has failed.
"""
