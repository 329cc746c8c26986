"""The zygote, a fork server: a Python that has imported torch once and forks workers. Runs under the user's
interpreter.

    __main__.py         the entry point
    fitness.py          whether it may be forked; if not, the module or thread that prevents it
    serve.py            the zygote: imports, waits for the launcher's orders, forks, reports the forks that have ended
    child.py            what a fork resets, so that the user's script runs as in a fresh process
    early_variables.py  whether a script sets variables that an import has already read
    script.py           runs the user's script as the interpreter would
    store.py            a fork that serves a round's store
"""
