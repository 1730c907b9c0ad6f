"""What both sides of a deployment on Flower agree on."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, Message

TOKEN, PARTY = "fedunseen-token", "fedunseen-party"  # headers of a party: this process of it; its name, if plain text
SILENCE = 8.0  # seconds after which a party that says nothing is gone
HOLD = 2.0  # seconds for which the coordinator holds a question for messages, or a sign of life, to see its end


WHOLE = 8 * 2**20  # bytes of a body that is sent in one piece: each piece is a request, to be signed and verified


def packed(body: bytes) -> ArrayRecord | ConfigRecord:
    """Put bytes into a record; Flower cuts a large one into pieces of 5 MiB."""
    if len(body) <= WHOLE:
        return ConfigRecord({"bytes": body})
    return ArrayRecord({"bytes": Array("uint8", (len(body),), "bytes", body)})


def unpacked(message: Message) -> bytes:
    """Take bytes out again; raises KeyError or ValueError if something else is in the message."""
    if "body" in message.content.config_records:
        whole = message.content.config_records["body"]["bytes"]
        if not isinstance(whole, bytes):
            raise ValueError("no bytes")
        return whole
    array = message.content.array_records["body"]["bytes"]
    if len(array.data) != array.shape[0]:
        raise ValueError("incomplete bytes")
    return array.data
