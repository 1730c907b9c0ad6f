"""A simulation as one NVFlare job: its client processes do the parties' work, its server passes messages on.

:func:`main` is that job's process, which :func:`fedunseen.engines.carriers.nvflare.simulate` starts. What its
``factory`` names is imported in the client processes alone.
"""

from __future__ import annotations

import os
import queue
import secrets
import sys
import threading
import time
from typing import Any

from nvflare.collab import CollabRecipe, collab
from nvflare.recipe import SimEnv

from fedunseen.engines.remote.link import found
from fedunseen.engines.remote.relay import ENDED, dial

__all__ = ["Process", "Switch", "main"]

LONG = 1e6  # s; whoever waits for an answer has a time-out of its own


class Process:
    """A client process of the job.

    Args:
        factory: the address of a function to call once.
        argument: what to call it with.
    """

    def __init__(self, factory: str, argument: str) -> None:
        self.factory, self.argument = factory, argument

    @collab.publish  # type: ignore[untyped-decorator]
    def here(self) -> bool:
        """Say that this process is there."""
        return True

    @collab.publish  # type: ignore[untyped-decorator]
    def answer(self, party: str, message: bytes) -> bytes:
        """Answer for a party."""
        if "made" not in vars(self):
            self.made = found(self.factory)(self.argument)
        return self.made(party, bytes(message))


class Switch:
    """The job's server: takes messages from our process and has a client process answer them, one at a time.

    A party is always answered for by the same process.

    Args:
        parties: how many there are.
    """

    def __init__(self, parties: int) -> None:
        self.parties = parties
        self.open: set[int] = set()  # messages that somebody waits for

    @collab.main  # type: ignore[untyped-decorator]
    def run(self) -> None:
        """Pass messages on until our process goes."""
        channel = dial()
        names = [str(i) for i in range(self.parties)]
        queues: list[queue.SimpleQueue[tuple[int, str, bytes]]] = []
        for client in collab.clients:
            queues.append(queue.SimpleQueue())
            threading.Thread(target=self.work, args=(client, queues[-1], channel), daemon=True).start()
            threading.Thread(target=self.watch, args=(client,), daemon=True).start()
        token = secrets.token_hex(8)
        channel.send({"parties": dict.fromkeys(names, token)})
        place = {name: i % len(queues) for i, name in enumerate(names)}
        try:
            while True:
                head, body = channel.receive()
                if head.get("drop"):
                    self.open.discard(head["id"])
                    continue
                self.open.add(head["id"])
                queues[place[head["to"]]].put((head["id"], head["to"], body))
        except ENDED:
            os._exit(0)  # our process has gone, and its keeper will end the rest

    def work(self, client: Any, waiting: queue.SimpleQueue[tuple[int, str, bytes]], channel: Any) -> None:
        """Have one client process answer, one message after another."""
        while True:
            number, party, body = waiting.get()
            if number not in self.open:
                continue
            try:
                channel.send({"id": number}, bytes(client(timeout=LONG).answer(party, body)))
            except Exception as error:
                self.end(client, error)
            self.open.discard(number)

    def watch(self, client: Any) -> None:
        """Notice the death of a client process; NVFlare does not tell those who wait for its answer."""
        while True:
            time.sleep(1)
            try:
                client(timeout=5).here()
            except Exception as error:
                if not isinstance(getattr(error, "cause", error), TimeoutError):
                    self.end(client, error)

    def end(self, client: Any, error: Exception) -> None:
        """End the job, so that our process starts another one."""
        print(f"client {client.name}: {error!r}", file=sys.stderr, flush=True)
        os._exit(1)


def main(folder: str, parties: str, processes: str, factory: str, argument: str) -> None:
    """Run the job."""
    switch, process = Switch(int(parties)), Process(factory, argument)
    recipe = CollabRecipe("simulation", server=switch, client=process, min_clients=int(processes))
    names = [f"process-{i}" for i in range(int(processes))]
    recipe.execute(SimEnv(clients=names, num_threads=len(names), workspace_root=folder))
