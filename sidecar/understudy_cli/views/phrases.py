"""Durations, times and one-line descriptions, as all views write them. Pure."""

from datetime import UTC, datetime

from understudy_cli.facts import Cause, Recovery

NONE = "-"


def duration(seconds: float) -> str:
    """Short, as kubectl writes ages: 45s, 12m, 3h20m, 5d."""
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole}s"
    if whole < 2 * 3600:
        return f"{whole // 60}m"
    if whole < 48 * 3600:
        hours, minutes = whole // 3600, whole % 3600 // 60
        return f"{hours}h{minutes}m" if minutes and hours < 10 else f"{hours}h"
    return f"{whole // 86400}d"


def age(at: float | None, now: float) -> str:
    return NONE if at is None else duration(now - at)


def precise(seconds: float) -> str:
    """A pause: 0.41 s, 8.2 s, 95 s, 12m."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    return f"{seconds:.1f} s" if seconds < 100 else duration(seconds)


def clock(at: float | None) -> str:
    """A time in UTC."""
    if at is None:
        return NONE
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return NONE


def subject(cause: Cause) -> str:
    """The place of a fault: rank, pod and node, as far as they are known."""
    parts = [f"rank {cause.rank}"] if cause.rank is not None else []
    if cause.pod:
        parts.append(f"pod {cause.pod}")
    if cause.node:
        parts.append(f"node {cause.node}")
    return ", ".join(parts)


def symptom(cause: Cause) -> str:
    """The message of the fault, else the signal or the exit code."""
    if cause.message:
        return cause.message
    if cause.signal:
        return f"ended by {cause.signal}"
    return "" if cause.exit_code is None else f"exited with code {cause.exit_code}"


def outcome(recovery: Recovery, now: float) -> str:
    """The strategy, and how long training paused."""
    if recovery.pause_s is not None:
        return f"{recovery.strategy or 'resumed'} in {precise(recovery.pause_s)}"
    if recovery.outcome not in ("", "Recovered"):
        return ", ".join(filter(None, (recovery.strategy, f"ended: {recovery.outcome}")))
    if not recovery.is_open:
        return f"{recovery.strategy or 'resumed'}, workers run again"
    since = "" if recovery.detected_at is None else f", for {duration(now - recovery.detected_at)} so far"
    return f"{recovery.strategy or 'no strategy yet'}{since}"


def fault_line(recovery: Recovery, now: float) -> str:
    """A recovery in one line."""
    place, seen = subject(recovery.cause), symptom(recovery.cause)
    observation = ": ".join(filter(None, (", ".join(filter(None, (recovery.fault, place))), seen)))
    number = "" if recovery.round is None else f", round {recovery.round}"
    return f"{observation} → {outcome(recovery, now)}{number}"
