"""How our programs write their logs: as text, for people, or as one JSON object a line, for whoever collects them.

UNDERSTUDY_LOG_FORMAT says which. A JSON line has time, level, logger and message; as fields what it is about
(namespace, job, pool); and error, with the traceback, where there is one. What a task is about it says once, by
`about`: tasks that it starts inherit that, so no line has to. What kopf logs of an object carries a reference to it,
which is read as well.
"""

import json
import logging
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime, timezone
from types import MappingProxyType
from typing import Any

ENV_FORMAT = "UNDERSTUDY_LOG_FORMAT"
ENV_LEVEL = "UNDERSTUDY_LOG_LEVEL"
TEXT, JSON = "text", "json"
#: Of kopf: the attribute of a record that refers to an object.
_REFERENCE = "k8s_ref"
_NOTHING: Mapping[str, str] = MappingProxyType({})
_about: ContextVar[Mapping[str, str]] = ContextVar("about", default=_NOTHING)
_of_process: dict[str, str] = {}


def about(**fields: str) -> None:
    """What this task, and those that it starts, log is about that from now on."""
    _about.set(fields)


def of_process(**fields: str) -> None:
    """What this process logs is about that from now on."""
    _of_process.update(fields)


def read_format(env: Mapping[str, str]) -> str:
    """Raises ValueError."""
    told = env.get(ENV_FORMAT) or TEXT
    if told not in (TEXT, JSON):
        raise ValueError(f"{ENV_FORMAT} is {told!r}: set it to {TEXT} or {JSON} (chart: logFormat)")
    return told


def configure(env: Mapping[str, str], text: str) -> None:
    """All logs go to stderr. text: of a line, where no JSON is asked for. Raises ValueError."""
    level, wrong = env.get(ENV_LEVEL) or "INFO", None
    try:
        as_json = read_format(env) == JSON
    except ValueError as error:
        as_json, wrong = False, error
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else logging.Formatter(text, "%Y-%m-%dT%H:%M:%S"))
    logging.basicConfig(level=level, handlers=[handler])
    if wrong is not None:
        raise wrong


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, timezone.utc)
        line: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_of_process,
            **_reference(record),
            **_about.get(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return json.dumps(line, ensure_ascii=False, default=str)


def _reference(record: logging.LogRecord) -> Mapping[str, str]:
    told = getattr(record, _REFERENCE, None) or {}
    return {field: told[field] for field in ("namespace", "kind", "name") if told.get(field)}
