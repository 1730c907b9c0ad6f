"""What both sides of a deployment on Flower agree on."""

from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord

TOKEN, PARTY = "fedunseen-token", "fedunseen-party"  # headers of a party: this process of it; its name, if plain text
SILENCE = 8.0  # seconds after which a party that says nothing is gone
HOLD = 2.0  # seconds for which the coordinator holds a question for messages, or a sign of life, to see its end


WHOLE = 8 * 2**20  # bytes of a body that is sent in one piece: each piece is a request, to be signed and verified


def packed(body: bytes) -> ArrayRecord | ConfigRecord:
    """Put bytes into a record; Flower cuts a large one into pieces of 5 MiB."""
    if len(body) <= WHOLE:
        return ConfigRecord({"bytes": body})
    return ArrayRecord({"bytes": Array("uint8", (len(body),), "bytes", body)})


def unpacked(record: object) -> bytes:
    """Take bytes out again; raises KeyError or ValueError if it is another record."""
    if isinstance(record, ConfigRecord) and isinstance(whole := record["bytes"], bytes):
        return whole
    if not isinstance(record, ArrayRecord):
        raise ValueError("no bytes")
    array = record["bytes"]
    if len(array.data) != array.shape[0]:
        raise ValueError("incomplete bytes")
    return array.data


def record_of(tree: Any) -> Any:
    """Return the part of a message's tree of objects that is its one record; raises ValueError if it has not just one.

    The objects above it say nothing that both sides do not know, and each is a request that costs Flower milliseconds.
    """
    (content,) = tree.children
    (record,) = content.children
    return record
