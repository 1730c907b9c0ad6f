"""What both sides of a deployment on Flower agree on."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Message

__all__ = ["HOLD", "PARTY", "SILENCE", "TOKEN", "packed", "unpacked"]

TOKEN, PARTY = "fedunseen-token", "fedunseen-party"  # headers of a party: this process of it; its name, if plain text
SILENCE = 8.0  # seconds after which a party that says nothing is gone
HOLD = 2.0  # seconds for which the coordinator holds a question for messages, or a sign of life, to see its end


def packed(body: bytes) -> ArrayRecord:
    """Put bytes into what Flower cuts into pieces of 5 MiB."""
    return ArrayRecord({"bytes": Array("uint8", (len(body),), "bytes", body or b"\0")})


def unpacked(message: Message) -> bytes:
    """Take bytes out again; raises KeyError or ValueError if something else is in the message."""
    array = message.content.array_records["body"]["bytes"]
    length = array.shape[0]
    if len(array.data) != max(1, length):
        raise ValueError("incomplete bytes")
    return array.data if length else b""
