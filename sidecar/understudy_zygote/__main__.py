"""`PYTHON [OPTION]… …/understudy_zygote/__main__.py FD KIND TARGET [ARGUMENT]…`: see serve.py.

FD: the control socket. KIND and TARGET: what a fork runs, see script.py; the arguments are its own.
"""

import os
import sys

_folder = os.path.dirname(os.path.abspath(__file__))
if sys.path and os.path.abspath(sys.path[0]) == _folder:  # put there for us, unless Python was told -I or -P
    del sys.path[0]
sys.path.insert(0, os.path.dirname(_folder))

from understudy_zygote import script, serve  # noqa: E402

del sys.path[0]

_program = serve.main(sys.argv[1:])
if _program is not None:
    script.run(_program)  # the tail of the interpreter: its threads are joined, and atexit runs, as in any process
