"""Real parties behind a bad network: 100 ms, 2 % loss, 5 Mbit/s, and a link that is cut while a
round runs.
"""

import asyncio
import contextlib
import json
import random
import threading
import time

import pytest

from fedunseen import Experiment, run
from processes import Deployment, command, sets
from same import same
from small_runs import TRAINED

pytestmark = pytest.mark.slow

NAMES = ("north", "south")
ROUNDS = 3
SMALL = {**TRAINED, "partition.clients": 2, "strategy.rounds": ROUNDS, "method.kl": 0.0}
CUT = 3.0  # seconds; 30 in the field
DELAY, LOSS, RATE = (
    0.1,
    0.02,
    5e6 / 8,
)  # seconds one way, share of lost packets, bytes a second one way
AGAIN = 0.2  # seconds until a lost packet is sent again, while everything behind it waits
PACKET = 1448  # bytes of content


class Proxy:
    """Carries bytes between a port of its own and another one, both ways, as a bad network does."""

    def __init__(self, port):
        self.target, self.down, self.dice = port, False, random.Random(0)
        self.carried, self.cuts, self.open = 0, 0, set()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.server = self._do(asyncio.start_server(self._connect, "127.0.0.1", 0))
        self.port = self.server.sockets[0].getsockname()[1]

    def cut(self):
        """End all connections; new ones get no answer as long as it is ``down``."""
        self._do(self._cut())

    def close(self):
        self.cut()
        self.loop.call_soon_threadsafe(self.loop.stop)

    def _do(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    async def _cut(self):
        self.down = True
        self.cuts += len(self.open)
        while self.open:
            for writer in self.open.pop():
                writer.transport.abort()

    async def _connect(self, near, to_near):
        far = None
        while far is None:  # until the link is there and someone listens, nothing comes back
            if not self.down:
                with contextlib.suppress(OSError):
                    far, to_far = await asyncio.open_connection("127.0.0.1", self.target)
                    continue
            await asyncio.sleep(0.05)
        pair = (to_near, to_far)
        self.open.add(pair)
        ways = [
            asyncio.ensure_future(self._carry(*way)) for way in ((near, to_far), (far, to_near))
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        self.open.discard(pair)
        for writer in pair:
            writer.close()

    async def _carry(self, reader, writer):
        """Pass packets on, each ``DELAY`` after it came, no more than ``RATE``, and late if it was
        lost.
        """
        waiting = asyncio.Queue()
        receiving = asyncio.ensure_future(self._receive(reader, waiting))
        free = 0.0
        while (packet := await waiting.get()) is not None:
            due, content = packet
            lost = self.dice.random() < LOSS
            free = max(free, due) + len(content) / RATE + (AGAIN if lost else 0.0)
            await asyncio.sleep(free - self.loop.time())
            writer.write(content)
            self.carried += len(content)
        await receiving

    async def _receive(self, reader, waiting):
        with contextlib.suppress(OSError):
            while content := await reader.read(PACKET):
                waiting.put_nowait((self.loop.time() + DELAY, content))
        waiting.put_nowait(None)


def test_a_bad_network_and_a_cut_change_nothing(machine, tmp_path):
    """Everything that parties send and receive goes through the proxy, which is cut when the first
    round is merged.
    """
    command(
        "data",
        "deal",
        "digit-pairs",
        *sets(SMALL),
        "--parties",
        ",".join(NAMES),
        "--out",
        tmp_path / "data",
    )
    given = machine, NAMES, tmp_path / "data", "digit-pairs", *sets(SMALL)
    deployment = Deployment(*given, join=["--patience", 600])
    proxy = Proxy(deployment.port)
    try:
        coordinator = deployment.host("--json")
        parties = {name: deployment.join(name, port=proxy.port) for name in NAMES}
        lines = tmp_path / "run" / "metrics.jsonl"
        machine.until(
            lambda: lines.exists() and lines.read_text().count("\n") >= 1,
            coordinator,
            *parties.values(),
        )
        proxy.cut()
        time.sleep(CUT)
        proxy.down = False
        deployment.end(coordinator, parties)
    finally:
        proxy.close()
    assert proxy.cuts >= len(NAMES)
    assert proxy.carried > 2 * len(NAMES) * ROUNDS * 1000
    here = run(
        Experiment.load("digit-pairs", {**SMALL, "engine.mode": "one-at-a-time"}), tmp_path / "here"
    )
    assert same(tmp_path / "run", here.path)
    assert (
        json.loads((tmp_path / "run" / "result.json").read_text())["gzsl_harmonic"]
        == here.result["gzsl_harmonic"]
    )
