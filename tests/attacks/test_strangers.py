"""Connections of strangers: TLS, opening and signature share one deadline, counted from when they
were accepted.
"""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("websockets", reason="pip install 'fedunseen[masked]'")

from websockets.server import ServerProtocol

from fedunseen.deploy.websocket import messages
from fedunseen.deploy.websocket.server import Guarded


class Transport(asyncio.Transport):
    """Counts how often it is cut."""

    def __init__(self):
        super().__init__()
        self.cut = 0

    def abort(self):
        self.cut += 1

    def set_write_buffer_limits(self, high=None, low=None):
        """Nothing is written."""


async def silent(connection):
    """A connection on which nothing is said."""


def accepted(loop, waited):
    """Return a connection whose TLS took some seconds, its transport, and the time when it was
    accepted.
    """
    server = SimpleNamespace(handler=silent, handler_tasks=set())
    start, transport = loop.time(), Transport()
    connection = Guarded(ServerProtocol(), server)
    loop.time = lambda: start + waited
    connection.connection_made(transport)
    return connection, transport, start


@pytest.mark.parametrize("waited", [0.0, 15.0])
def test_time_for_tls_is_time_less_to_say_who_one_is(waited):
    async def work():
        loop = asyncio.get_running_loop()
        clock = loop.time
        try:
            connection, transport, start = accepted(loop, waited)
            timer = connection._stranger
            assert timer.when() == pytest.approx(start + messages.CALL, abs=1.0)
            assert not timer.cancelled()
            connection.identified()  # a party stays
            assert timer.cancelled()
            assert transport.cut == 0
        finally:
            loop.time = clock

    asyncio.run(work())


def test_a_stranger_is_cut_when_the_time_is_over(monkeypatch):
    monkeypatch.setattr(messages, "CALL", 0.0)

    async def work():
        loop = asyncio.get_running_loop()
        clock = loop.time
        try:
            _, transport, _ = accepted(loop, 0.001)
        finally:
            loop.time = clock
        for _ in range(1000):
            if transport.cut:
                break
            await asyncio.sleep(0.001)
        assert transport.cut == 1

    asyncio.run(work())
