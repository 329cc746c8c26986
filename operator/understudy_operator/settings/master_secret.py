"""The file with the master secret, from the environment: UNDERSTUDY_MASTER_SECRET is its path (chart: masterSecret).

All bytes of the file count, including a line break at its end. Messages name the file and never quote its content.
"""

from collections.abc import Mapping

from understudy_operator.plan.facts.keyring import KEY_BYTES

ENV_MASTER_SECRET = "UNDERSTUDY_MASTER_SECRET"  # noqa: S105 (the name of a variable)
DEFAULT_PATH = "/understudy-master/secret"
MOST_BYTES = 4096


def read_master_secret(env: Mapping[str, str]) -> bytes:
    """Raises ValueError with the cause and the fix."""
    path = env.get(ENV_MASTER_SECRET) or DEFAULT_PATH
    try:
        with open(path, "rb") as file:
            master = file.read(MOST_BYTES + 1)
    except OSError as error:
        issue = f"cannot be read ({error.strerror})"
    else:
        if KEY_BYTES <= len(master) <= MOST_BYTES:
            return master
        issue = f"has {'more than ' if len(master) > MOST_BYTES else ''}{min(len(master), MOST_BYTES)} bytes"
    raise ValueError(
        f"the file {path} {issue}: the operator derives the keys of all jobs from it; mount a Secret there whose file "
        f"has {KEY_BYTES} to {MOST_BYTES} random bytes"
    )
