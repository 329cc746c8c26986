"""The zygote, a fork server: a Python that has imported torch once and forks workers. Runs under the user's
interpreter.

    __main__.py         the entry point
    fitness.py          whether it may be forked; if not, the module or thread that prevents it
    serve.py            the zygote: imports, waits for the launcher's orders, forks, reports the forks that have ended
    child.py            what a fork resets, so that the user's script runs as in a fresh process
    import_record.py    which modules a worker imports
    learning.py         imports these modules in a fork of the zygote, which then is the zygote
    optimizer_steps.py  reports the steps of torch's optimizers
    jax_cluster.py      lets a bare jax.distributed.initialize() join the round
    jax_cache.py        lets each process of jax write to its compilation cache
    build_locks.py      lock files of builds of torch extensions that were killed
    on_import.py        acts on a module that the script imports
    early_variables.py  whether a script sets variables that an import has already read
    script.py           runs the user's script as the interpreter would
    uncaught.py         reports the exception that ends a worker
    fresh/              the same for a worker that no zygote has forked
    store_fork.py       a fork that serves a round's store
"""
