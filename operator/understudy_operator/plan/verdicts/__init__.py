"""What the fields of a Node say about its hardware: the sources of faults, and the verdict that counts.

Start with findings.py: what a source found, and which finding counts.
"""
