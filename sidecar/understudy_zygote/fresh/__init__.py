"""A folder that is on PYTHONPATH when the Python of a fresh worker starts, and not for its script: sitecustomize.py."""
