"""Python imports this module before the script of a worker that is a fresh process: watch the script (uncaught.py).

Rules: this folder is last on PYTHONPATH, so a sitecustomize of the user's PYTHONPATH comes first, and then nothing is
watched. A sitecustomize of the Python itself is imported here instead. Before that, the folder leaves PYTHONPATH, so
scripts and their children have the PYTHONPATH of the pod. Only the worker is watched, which the launcher or torchrun
has started: no program that a shell or a script starts. Any Python can read this module.
"""

import os
import sys

_FOLDER = os.path.dirname(__file__)
_PARENT = os.environ.pop("UNDERSTUDY_WORKER_PARENT", "")
_OURS = sys.modules.pop(__name__)

sys.path[:] = [entry for entry in sys.path if entry != _FOLDER]
_THEIRS = [entry for entry in os.environ.pop("PYTHONPATH", "").split(":") if entry != _FOLDER]
if _THEIRS:
    os.environ["PYTHONPATH"] = ":".join(_THEIRS)
try:
    __import__(__name__)  # that of this Python
except ImportError as error:
    if getattr(error, "name", __name__) != __name__:
        raise
finally:
    sys.modules.setdefault(__name__, _OURS)
    if str(os.getppid()) == _PARENT and os.getsid(0) == os.getpid() and sys.version_info >= (3, 9):
        from understudy_zygote import uncaught

        uncaught.watch()
