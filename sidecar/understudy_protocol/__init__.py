"""Messages between processes, their wire form, and the names that pods and programs share.

Standard library only and Python 3.9, because the launcher runs under the interpreter of the user's image. The other
packages share code only through this one, and it imports none of them.
"""
