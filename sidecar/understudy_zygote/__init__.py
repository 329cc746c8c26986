"""The zygote: a Python that has imported torch once, and forks workers of it. Runs under the user's interpreter.

__main__.py   how it starts
fitness.py    whether it may be forked, and which module or thread is at fault if not
serve.py      the zygote itself: imports, waits for the launcher's orders, forks, tells who has ended
child.py      what a fork undoes, so that the user's script finds a fresh process
early_variables.py  whether a script sets variables that an import has read already
script.py     runs the user's script as the interpreter would
store.py      a fork that holds a round's store
"""
