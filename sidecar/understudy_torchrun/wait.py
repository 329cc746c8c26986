"""`python wait.py FD`: stands in for a torchrun whose workers the launcher runs, and exits with the code that it sends.

The torchrun replaces itself by this program: it keeps its pid, for which a shell may wait, and frees torch's memory.
"""

import json
import os
import sys

_CHUNK = 1 << 16
_NO_LAUNCHER = 1


def main(fd: int) -> int:
    text = b""
    while not text.endswith(b"\n"):
        chunk = os.read(fd, _CHUNK)
        if not chunk:
            return _NO_LAUNCHER
        text += chunk
    answer = json.loads(text)
    if answer.get("message"):
        sys.stderr.write(f"{answer['message']}\n")
    return int(answer["code"])


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
