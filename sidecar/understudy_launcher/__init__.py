"""Process 1 of the trainer container: starts, stops and watches the workers as its sidecar orders.

`supervise` makes the decisions and has no side effects; `rounds`, `groups`, `graces`, `steps` and `hangs` hold its
state. `loop` executes them. `environment` is pure too; `processes`, `step_page`, `ports`, `sidecar_link`, `kept_socket`
and `prctl` do I/O. `package` builds the files that the sidecar's image copies into the trainer container.

Standard library only, Python 3.9 or newer: the launcher runs under the Python of the user's image.
"""
