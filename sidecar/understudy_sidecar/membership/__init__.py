"""Rendezvous membership as sans-IO state machines: events and the time in, effects out.

No I/O, no clock, no asyncio and no logging in this folder. `now` is always Unix seconds and never goes back; the caller
derives it from a monotonic clock. Every machine has `handle(event, now) -> list[effect]` and `deadline() -> float |
None`, the next time at which it needs a `Tick`.
"""
