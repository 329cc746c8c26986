"""A real vLLM on the CPU, updated by its adapter: `make engines`, which installs it outside of the tree.

The tests run under the interpreter of that installation: the trainer's side needs torch, and sends real tensors over
gloo.
"""
