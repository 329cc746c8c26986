"""`PYTHON [OPTION]… …/understudy_zygote/__main__.py FD KIND TARGET [ARGUMENT]…`: see serve.py.

FD: the control socket. KIND and TARGET: the program that a fork runs, see script.py; the arguments are the program's.
"""

import os
import sys

_folder = os.path.dirname(os.path.abspath(__file__))
if (
    sys.path and os.path.abspath(sys.path[0]) == _folder
):  # Python inserts it for this file, unless started with -I or -P
    del sys.path[0]
sys.path.insert(0, os.path.dirname(_folder))

from understudy_zygote import script, serve  # noqa: E402

del sys.path[0]

_program = serve.main(sys.argv[1:])
if _program is not None:
    script.run(_program)  # then the interpreter ends as in any process: it joins threads and runs atexit
