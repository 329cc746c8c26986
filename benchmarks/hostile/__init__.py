"""Whether callers without the key can disturb a coordinator: how late its loop is, and whether a member is lost.

__main__     the command: a job of 64 members, 500 hostile connections, for 30 s      goals    what is aimed at
callers      the process that opens the connections
"""
