"""How long until a training goes on after a fault, next to its peers. `make bench-recovery`; see __main__.py.

train.py        what each system trains: tells when each rank has done its first all-reduce and its first step
told.py         what the ranks have told
training.py     the face that all systems share: start, break something, end
understudy.py   ours: local mode on network namespaces (local_nodes.py)
peers.py        torchrun, NVRx's launcher, and its in-process restart (inprocess_train.py)
systems.py      starts one of them
sigterm.py      a launcher on a faulty node, from SIGTERM to its exit
plan.py         which of them is to be broken how, how often, in which order
goals.py        what is aimed at
headline.py     the table of README.md
"""
