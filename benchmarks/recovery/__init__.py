"""How long until a training goes on after a fault, next to its peers. `make bench-recovery`; see __main__.py.

train.py        what each system trains: tells when each rank has done its first all-reduce and its first step
told.py         what the ranks have told
systems.py      the systems, with one face: start, break something, end
sigterm.py      a launcher on a faulty node, from SIGTERM to its exit
plan.py         which of them is to be broken how, how often, in which order
goals.py        what is aimed at
"""
