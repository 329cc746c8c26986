"""The namespaces that the operator watches, from the environment: UNDERSTUDY_NAMESPACES (watchNamespaces), names
separated by commas. If unset: all namespaces.
"""

import re
from collections.abc import Mapping

ENV_NAMESPACES = "UNDERSTUDY_NAMESPACES"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def read_namespaces(env: Mapping[str, str]) -> tuple[str, ...]:
    """Empty: all namespaces. Raises ValueError with the cause."""
    text = env.get(ENV_NAMESPACES, "")
    if not text:
        return ()
    names = text.split(",")
    wrong = next((name for name in names if not _NAME.fullmatch(name)), None)
    if wrong is not None:
        raise ValueError(
            f"{ENV_NAMESPACES} contains {wrong!r}, which is not the name of a namespace: correct or remove it"
        )
    return tuple(dict.fromkeys(names))
