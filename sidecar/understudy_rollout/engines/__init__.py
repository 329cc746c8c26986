"""Adapters for real inference servers, one file each, over HTTP (aiohttp).

They are not bound to an event loop, and need no close.
"""

from understudy_rollout.engines.sglang import SglangEngine
from understudy_rollout.engines.vllm import VllmEngine

__all__ = ["SglangEngine", "VllmEngine"]
