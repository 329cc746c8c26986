"""The command line `understudy`, which is also the kubectl plugin `kubectl understudy`.

Data flows one way: `kubeconfig` and `credentials` find the cluster, `api` and `following` get objects, `reading` checks
their fields (pure), `views` decides about rows (pure), and `render` prints them. `app` has the verbs.

Rules: the client reads, and changes only annotations (`drain`, `drill`). `doctor` sends access reviews, and one dry run
that stores nothing. Text of the cluster is untrusted, so `untrusted` removes control characters and limits its length.
All packages that it needs are pure Python, or work without their compiled modules, because the plugin is one zip file
for all machines.
"""
