"""Whether a real server and its double give the same answers to the same requests, one after the other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import aiohttp

from tests.unit.rollout.servers import EngineServer

Asked = tuple[str, str, Any]  # method, path, and the JSON body


async def answers_alike(asked: Sequence[Asked], real_url: str, double: EngineServer) -> None:
    await double.start()
    answers = []
    # One connection each: both hang up after an error.
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        for url in (real_url, double.url):
            answers.append([await _answer(session, method, url + path, body) for method, path, body in asked])
    await double.stop()
    for request, real, pretended in zip(asked, *answers, strict=True):
        assert (request, pretended) == (request, real)


async def _answer(session: aiohttp.ClientSession, method: str, url: str, body: Any) -> tuple[int, Any]:
    """Status and body, without the text of OpenAI's errors."""
    async with session.request(method, url, json=body) as response:
        text = await response.text()
        answer = json.loads(text) if response.content_type == "application/json" and text else text
    if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
        answer["error"]["message"] = "…"
    return response.status, answer
