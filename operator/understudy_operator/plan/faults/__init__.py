"""What is held against nodes: read from their objects by a table of sources, remembered over jobs, and acted upon.

Pure: nothing here reads a clock, a file or the API server.
"""
