"""What crosses a process border: messages, their wire form, and the names that pods and programs share.

Standard library only and Python 3.9, because the launcher runs under whatever interpreter the user's image has.
The other packages meet only here; this one imports none of them.
"""
