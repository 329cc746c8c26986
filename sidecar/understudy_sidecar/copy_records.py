"""The record of a copy: how it is encrypted, on its way and in the memory of the pod that keeps it.

    bytes                content
    -------------------  ------------------------------------------------------------------------------------------
    32                   a nonce, from which and from the job's key HKDF derives the key of this record
    HEADER + 16          the header of the slot
    size + 16 × chunks   the content of the slot, in chunks of 1 MiB; the header has the size

Each part is encrypted with AES-256-GCM, as the messages of sessions are (understudy_protocol/sessions.py), and the
parts are numbered. So a record that is cut, changed or mixed with another one cannot be opened. The pod that keeps a
record stores it as it arrives, and sends it as it is: its memory has no content that a process without the key can
read.
"""

import os

from understudy_protocol.sessions import Cipher, NotAuthentic, record_cipher
from understudy_protocol.snapshot_files import CHUNK_BYTES, HEADER, NONCE_BYTES, TAG_BYTES, Header, chunks, read_header

HEAD_BYTES = NONCE_BYTES + HEADER.size + TAG_BYTES
_ABOUT = b"understudy snapshot copy 1"


class Damaged(Exception):
    """A record is not what its owner has sent. The text has the reason."""


def seal_head(key: bytes, header: bytes) -> tuple[bytes, Cipher]:
    """The first HEAD_BYTES of a record, and the cipher for its chunks."""
    nonce = os.urandom(NONCE_BYTES)
    cipher = record_cipher(key, _ABOUT, nonce)
    return nonce + cipher.seal(header), cipher


def open_head(key: bytes, head: bytes, slot_bytes: int) -> tuple[bytes, Header, Cipher]:
    """The header of the slot, as bytes too, and the cipher for the chunks. Raises Damaged."""
    cipher = record_cipher(key, _ABOUT, head[:NONCE_BYTES])
    try:
        data = cipher.open(head[NONCE_BYTES:])
    except NotAuthentic as error:
        raise Damaged("its header cannot be opened with the job's key") from error
    header = read_header(data)
    if header is None or not 0 < header.size <= slot_bytes:
        size = None if header is None else header.size
        raise Damaged(f"its content has {size} bytes: expected 1 to {slot_bytes}, the memory for one state")
    return data, header, cipher


def pieces(size: int) -> list[tuple[int, int, int]]:
    """Start and end of each chunk in a content of this size, and its start among the encrypted chunks."""
    found = []
    for number in range(chunks(size)):
        start = number * CHUNK_BYTES
        found.append((start, min(size, start + CHUNK_BYTES), start + number * TAG_BYTES))
    return found
