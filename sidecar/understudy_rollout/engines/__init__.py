"""Adapters for real inference servers, one file each, over HTTP (aiohttp). They are used from one event loop only."""

from understudy_rollout.engines.sglang import SglangEngine
from understudy_rollout.engines.vllm import VllmEngine

__all__ = ["SglangEngine", "VllmEngine"]
