"""Turns facts into the rows that a command shows. Pure: no I/O, no clock, no terminal.

A view is a frozen dataclass. `render` prints it as text; as JSON and YAML it has the same fields.
"""
