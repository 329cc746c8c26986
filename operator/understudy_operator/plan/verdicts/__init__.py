"""The hardware of a node, from the fields of its Node object: the sources of faults, and the verdict that counts.

Start with findings.py: the finding of a source, and which finding counts.
"""
