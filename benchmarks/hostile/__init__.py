"""Whether callers without the key can disturb a coordinator: the lag of its event loop, and lost members.

__main__     the command: a job of 64 members, 500 hostile connections, for 30 s      goals    the goals
callers      the process that opens the connections
"""
