"""Pid 1 of the trainer container: starts, stops and watches the workers as its sidecar says.

`supervise` decides and does nothing else, on what `rounds`, `groups`, `graces`, `steps` and `hangs` know; `loop` acts.
`environment` is pure too; `processes`, `step_page`, `ports`, `sidecar_link`, `held_socket` and `prctl` are the edges.
`package` builds what the sidecar's image carries into the trainer.

Standard library only, and Python 3.9's: it runs under whatever interpreter the user's image has.
"""
