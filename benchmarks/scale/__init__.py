"""The cost of a coordinator of up to 100,000 members, without sockets: its core, its messages, and its memory.

__main__      the command: one process for each run, stores the samples, prints the results
coordinator   the measured process: a real core behind the real server's links, whose transports are in memory
members       the other end of all links, in a process of its own, so that its memory and CPU time are not measured
table         the table of the documentation
"""
