"""The objects that the operator creates, as JSON.

Start with pods.py: the pods of a world.
"""
