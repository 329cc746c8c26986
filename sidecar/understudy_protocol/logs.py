"""The log format of all our programs: text for people, or one JSON object a line for log collectors.

Messages contain texts of users, pods and other programs. So a record in text is one line, with its traceback below, and
characters that are not printable are escaped: no text looks like a line of another record, or changes a terminal.

UNDERSTUDY_LOG_FORMAT selects the format. A JSON line has time, level, logger and message, the fields of its context
(namespace, job, pool), and error, with the traceback, if there is one. A task sets its context once with `about`, and
tasks that it starts inherit the context. kopf's log records of an object have a reference to the object, which becomes
fields, too.
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
#: The attribute of a record in which kopf refers to an object.
_REFERENCE = "k8s_ref"
_NOTHING: Mapping[str, str] = MappingProxyType({})
_about: ContextVar[Mapping[str, str]] = ContextVar("about", default=_NOTHING)
_of_process: dict[str, str] = {}


def about(**fields: str) -> None:
    """Set the context of log lines of this task, and of tasks that it starts from now on."""
    _about.set(fields)


def of_process(**fields: str) -> None:
    """Add fields to the context of all log lines of this process."""
    _of_process.update(fields)


def read_format(env: Mapping[str, str]) -> str:
    """Raises ValueError."""
    value = env.get(ENV_FORMAT) or TEXT
    if value not in (TEXT, JSON):
        raise ValueError(f"{ENV_FORMAT} is {value!r}: set it to {TEXT} or {JSON} (chart: logFormat)")
    return value


def configure(env: Mapping[str, str], text: str) -> None:
    """Send all logs to stderr. text: the format of a line unless JSON is selected. Raises ValueError."""
    level, wrong = env.get(ENV_LEVEL) or "INFO", None
    try:
        as_json = read_format(env) == JSON
    except ValueError as error:
        as_json, wrong = False, error
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else TextLines(text, "%Y-%m-%dT%H:%M:%S"))
    logging.basicConfig(level=level, handlers=[handler])
    if wrong is not None:
        raise wrong


class TextLines(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging calls it)
        return _escaped(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 (logging calls it)
        return "\n".join(map(_escaped, super().formatException(ei).split("\n")))


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(x if x.isprintable() else x.encode("unicode_escape").decode() for x in text)


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
    reference = getattr(record, _REFERENCE, None) or {}
    return {field: reference[field] for field in ("namespace", "kind", "name") if reference.get(field)}
