"""Node health findings: read from node objects by a table of sources, remembered across jobs, and acted upon.

Pure: nothing here reads a clock, a file or the API server.
"""
