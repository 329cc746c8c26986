from __future__ import annotations

import pytest

from tests.unit.protocol.readers import READERS, Reader


@pytest.fixture(params=READERS, ids=["wire", "compiled"])
def read(request: pytest.FixtureRequest) -> Reader:
    reader: Reader = request.param
    return reader
