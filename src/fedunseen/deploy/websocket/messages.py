"""What both sides of a connection agree on: how a message is sent, signs of life, and what a party
signs.

A message is a small JSON object, ``{"id": number, "size": bytes}``, and then its content in pieces.
An answer has the id of its question. An empty text is a sign of life.

WebSocket has pings and fragments, which do not do here (docs/research/federation.md). The answer
to a ping stands behind a message in the buffers of a slow line for longer than SILENCE, while
pieces arrive all the time: so any piece is a sign of life. Fragments do not say how large their
message is: a head does, so that an answer that is too large ends before its bytes, a large one goes
to disk, who has not said who it is can send one piece at most, and each piece has its own time-out.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed

from fedunseen.core.files import parse_json
from fedunseen.deploy.remote.link import Letter

CHUNK = (
    2**16
)  # bytes of a piece: small, since a piece has to arrive within SILENCE on a slow line, too
# seconds between signs of life; after so many without one, the other side is gone
BEAT = 1.0
SILENCE = 8.0
CALL = 20.0  # seconds in which a connection has to be ready
LEAVE = 1.0  # seconds for the other side to take part in the end of a connection
# codes with which the coordinator closes a connection: no such key; another process; a known key
# whose certificate has ended, or has not begun
REFUSED = 4403
TAKEN = 4409
ENDED = 4410


def statement(challenge: bytes, name: str, token: str) -> bytes:
    """Return what a party signs when it connects: what the coordinator has drawn, and who it says
    that it is.
    """
    return b"fedunseen party " + challenge + json.dumps([name, token]).encode()


def clock_statement(challenge: bytes, name: str, clock: str) -> bytes:
    """Return what a party signs to say what its clock shows; it lets nobody in."""
    return b"fedunseen clock " + challenge + json.dumps([name, clock]).encode()


def holder_of(token: str) -> str:
    """Return the part of a process's token that its state folder keeps over restarts."""
    return token.partition(".")[0]


def pieces(number: int, message: bytes | Letter) -> Iterator[str | memoryview]:
    """Yield a message as it is sent."""
    yield json.dumps({"id": number, "size": len(message)})
    parts = (message.head, message.body) if isinstance(message, Letter) else (message,)
    for part in parts:
        content = memoryview(part)
        yield from (content[first : first + CHUNK] for first in range(0, len(content), CHUNK))


def read_head(head: str | bytes) -> tuple[int, int]:
    """Return the id and the size of a message; raises ValueError if they are not to be read."""
    about = parse_json(head)
    if not isinstance(about, dict) or not all(
        type(about.get(key)) is int for key in ("id", "size")
    ):
        raise ValueError("a message without an id and a size")
    return about["id"], about["size"]


async def heard(connection: Connection, beats: bool = False) -> str | bytes:
    """Receive the next piece, or sign of life; raises TimeoutError if the other side is silent for
    too long.
    """
    while True:
        try:
            async with asyncio.timeout(SILENCE):
                piece = await connection.recv()
        except TimeoutError:
            raise TimeoutError("it says nothing any more") from None
        if beats or piece != "":
            return piece


@contextlib.asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do something for as long as the context lasts."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()


@contextlib.asynccontextmanager
async def alive(connection: Connection) -> AsyncIterator[None]:
    """Give signs of life while the context lasts, and cut the connection soon after it."""

    async def beat() -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                await connection.send("")
                await asyncio.sleep(BEAT)

    try:
        async with beside(beat()):
            yield
    finally:
        cut_soon(connection)


def cut_soon(connection: Connection) -> None:
    """Cut a connection unless it ends by itself: closing waits for ever for an other side that
    reads nothing.
    """
    asyncio.get_running_loop().call_later(LEAVE, connection.transport.abort)
