"""Adapters for real inference servers, one file each, over HTTP (aiohttp).

They belong to no event loop, and need not be closed.
"""

from understudy_rollout.engines.sglang import SglangEngine
from understudy_rollout.engines.vllm import VllmEngine

__all__ = ["SglangEngine", "VllmEngine"]
