"""Raw dicts to and from the API server, on the connection of `kubernetes.aio`.

The typed models drop unknown fields silently, so no object of theirs is used: paths and JSON only.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kubernetes.aio import client
from kubernetes.aio.client.exceptions import ApiException

Raw = dict[str, Any]
FIELD_MANAGER = "understudy-operator"
REQUEST_S = 30.0
PAGE = 500


class ApiError(Exception):
    """The API server's refusal: HTTP status, reason and message."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class Api:
    def __init__(self, api_client: client.ApiClient) -> None:
        self._client = api_client

    async def get(self, path: str) -> Raw:
        return await self._call("GET", path)

    async def list(self, path: str, selector: str = "") -> list[Raw]:
        """All items, page by page."""
        items: list[Raw] = []
        query = [("limit", str(PAGE)), ("labelSelector", selector)]
        token = ""
        while True:
            page = await self._call("GET", path, query=[*query, ("continue", token)])
            items += page["items"]
            token = page["metadata"].get("continue", "")
            if not token:
                return items

    async def create(self, path: str, body: Mapping[str, Any]) -> Raw:
        query = [("fieldManager", FIELD_MANAGER), ("fieldValidation", "Strict")]
        return await self._call("POST", path, query=query, body=body)

    async def check(self, path: str, body: Mapping[str, Any]) -> None:
        """What would come of creating it: an ApiError, or nothing."""
        query = [("fieldManager", FIELD_MANAGER), ("fieldValidation", "Strict"), ("dryRun", "All")]
        await self._call("POST", path, query=query, body=body)

    async def replace(self, path: str, body: Mapping[str, Any]) -> Raw:
        return await self._call("PUT", path, query=[("fieldManager", FIELD_MANAGER)], body=body)

    async def merge(self, path: str, body: Mapping[str, Any]) -> Raw:
        return await self._call(
            "PATCH", path, query=[("fieldManager", FIELD_MANAGER)], body=body, content="application/merge-patch+json"
        )

    async def delete(self, path: str, body: Mapping[str, Any]) -> Raw:
        return await self._call("DELETE", path, body=body)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: Mapping[str, Any] | None = None,
        content: str = "application/json",
    ) -> Raw:
        request = await self._client.param_serialize(
            method,
            path,
            query_params=[(name, value) for name, value in query if value],
            header_params={"Accept": "application/json", "Content-Type": content},
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            response = await self._client.call_api(*request, _request_timeout=REQUEST_S)
            text = await response.read()  # type: ignore[no-untyped-call]
        except ApiException as error:
            raise _error(error.status or 0, error.body or "") from error
        if not 200 <= response.status <= 299:
            raise _error(response.status, text or b"")
        return json.loads(text)  # type: ignore[no-any-return]


def _error(status: int, body: str | bytes) -> ApiError:
    try:
        told = json.loads(body)
        return ApiError(status, str(told.get("reason", "")), str(told.get("message", "")))
    except ValueError:
        return ApiError(status, "", str(body)[:500])
