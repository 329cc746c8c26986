"""The time until a training continues after a fault, next to its peers. `make bench-recovery`; see __main__.py.

train.py        the training of all systems: each rank reports its first all-reduce and its first step
reports.py      reads the ranks' reports
training.py     the interface of all systems: start, cause a fault, end
understudy.py   ours: local mode on network namespaces (local_nodes.py)
peers.py        torchrun, NVRx's launcher, and its in-process restart (inprocess_train.py)
systems.py      starts one of them
sigterm.py      a launcher on a faulty node, from SIGTERM to its exit
plan.py         the faults of each system, their number and order
goals.py        the goals
headline.py     the table of README.md
"""
