"""The two heads of a WebSocket upgrade, as the standard defines them; test_strangers.py has refusals over real
connections.
"""

from __future__ import annotations

import pytest

from understudy_protocol.frames import ProtocolError
from understudy_protocol.upgrade import accept, check_answer, request, take_head

HEAD_BYTES = 4096

PATH = "/v1/membership"


def asked(path: str = PATH) -> tuple[bytes, bytes]:
    """The head of a request without its end, and its token."""
    head, token = request("10.0.0.1", 8478, path)
    return head[:-4], token


def test_the_standards_own_example() -> None:
    head = asked()[0].split(b"Sec-WebSocket-Key")[0] + b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
    assert b"\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in accept(head, PATH)


def test_both_sides_agree() -> None:
    head, token = asked()
    check_answer(accept(head, PATH)[:-4], token)


def test_headers_are_read_whatever_their_case_and_spaces() -> None:
    head, token = asked()
    head = head.replace(b"Upgrade: websocket", b"UPGRADE:WebSocket ").replace(b": Upgrade", b":\tkeep-alive, UPGRADE")
    check_answer(accept(head, PATH).replace(b"Accept: ", b"ACCEPT:")[:-4], token)


def test_a_query_is_ignored() -> None:
    accept(asked(PATH + "?from=here")[0], PATH)


def test_an_address_of_ipv6_is_written_in_brackets() -> None:
    assert b"\r\nHost: [fd00::1]:8478\r\n" in request("fd00::1", 8478, PATH)[0]


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        (b"HTTP/1.1 404 Not Found", "expected status 101"),
        (b"HTTP/1.1 101 Switching Protocols", "Sec-WebSocket-Accept"),
        (b"", "expected status 101"),
    ],
)
def test_another_answer_is_refused(answer: bytes, wrong: str) -> None:
    with pytest.raises(ProtocolError, match=wrong):
        check_answer(answer, asked()[1])


def test_an_extension_that_was_not_requested_is_refused() -> None:
    head, token = asked()
    answer = accept(head, PATH)[:-4] + b"\r\nSec-WebSocket-Extensions: permessage-deflate"
    with pytest.raises(ProtocolError, match="extension"):
        check_answer(answer, token)


def test_a_head_is_read_when_it_is_complete_and_later_bytes_stay() -> None:
    received = bytearray(b"HEAD\r\nX: y\r")
    assert take_head(received) is None
    received += b"\n\r\nframes"
    assert take_head(received) == b"HEAD\r\nX: y"
    assert received == b"frames"


def test_a_head_may_not_be_longer_than_its_limit() -> None:
    assert take_head(bytearray(b"x" * (HEAD_BYTES - 1))) is None
    with pytest.raises(ProtocolError, match="at most"):
        take_head(bytearray(b"x" * HEAD_BYTES + b"\r\n\r\n"))
