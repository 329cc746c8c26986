"""A unix socket in the folder that the sidecar shares with the trainer container.

The trainer runs as any uid, so every process of the pod may connect (mode 0666). The socket is bound to a random name
and renamed over the existing entry: a socket of an earlier process, or any file of the trainer. The mode is set before
the socket has a name: a chmod of the path would follow a link.
"""

import os
import socket

from understudy_protocol import files


def bound(path: files.Path) -> socket.socket:
    """Return a socket that does not block, and does not listen yet. Raises OSError."""
    aside = os.path.join(os.path.dirname(path), files.unused_name())
    server = socket.socket(socket.AF_UNIX)
    try:
        server.setblocking(False)
        before = os.umask(0o111)
        try:
            server.bind(aside)
        finally:
            os.umask(before)
        files.replace(aside, path)
    except OSError:
        server.close()
        raise
    return server
