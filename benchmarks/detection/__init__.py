"""`make bench-detection`: how soon a kernel shows that a machine has no power, and whether it ever says so by mistake.

One process holds the connections of a coordinator to the members of one machine, with the sidecar's socket options, and
asks the kernel as a sidecar does (understudy_sidecar/tcp.py, machine_watch.py). The members read, and never answer, so
only their kernel acknowledges packets. Each PING_S, every connection gets a packet and is watched, as if a step were
late. Needs root.

    quiet   a machine behind a cable
    busy    the same, and four processes for each core use all CPU time; the members have the lowest priority
    lossy   each packet arrives 0 to 200 ms later, so packets overtake each other, and 1 % of them never arrive

    *-alive  nothing is broken: the number of false alarms
    *-off    the cable is pulled, and all connections get a packet 0.55 to 1.1 s later
"""
