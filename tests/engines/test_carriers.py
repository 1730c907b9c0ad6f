"""What carriers do alike, among parties that answer with their name and what they were sent."""

import os
import sys
import threading
import time

import pytest

from carried import Place
from fedunseen.engines.carriers import websocket
from fedunseen.engines.remote.link import exchange
from processes import GUARD, Forked, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are watched through /proc"),
]
NAMES = ("north", "south", "west")


def be_party(place):
    """Be a party's process."""

    def answer(message):
        if message == b"slowly":
            time.sleep(3600)
        return place.name.encode() + b":" + message

    websocket.join(place, answer, threading.Event())


def sent(body, names=NAMES):
    return dict.fromkeys(names, body)


def answers(body):
    return {name: f"{name}:".encode() + body for name in NAMES}


@pytest.mark.parametrize("secure", [True, False], ids=["tls", "plain"])
def test_messages_of_any_size_arrive(secure, tmp_path):
    place = Place(tmp_path, NAMES, secure)
    with place.host() as link:
        parties = [place.join(name) for name in NAMES]
        until(lambda: len(link.present()) == 3)
        for body in (b"", b"\0", os.urandom(12_000_000), b"\0" * 12_000_000):
            assert dict(exchange(link, sent(body), GUARD)) == answers(body)
        found = dict(exchange(link, {"south": b"only", "nobody": b"?"}, GUARD))
        assert found == {"south": b"south:only", "nobody": None}
        assert dict(exchange(link, sent(b"last"), GUARD)) == answers(b"last")
        assert [party.ended() for party in parties] == [None] * 3
        until(lambda: not link.present())


def test_a_killed_party_is_left_out_and_comes_back(machine, tmp_path):
    place = Place(tmp_path, NAMES)

    def start(name):
        machine.running.append(Forked([place.at(name)], be_party, tmp_path, f"{name}.log"))
        return machine.running[-1]

    with place.host() as link:
        killed, _ = start("north"), start("south")
        until(lambda: len(link.present()) == 2)
        first = link.present()
        threading.Timer(0.5, killed.kill).start()
        begin = time.monotonic()
        found = list(exchange(link, {"north": b"slowly", "south": b"now"}, GUARD))
        assert found == [("south", b"south:now"), ("north", None)]
        assert time.monotonic() - begin < GUARD  # no one waited until the exchange was over
        until(lambda: list(link.present()) == ["south"])
        assert dict(exchange(link, {"north": b"gone?"}, GUARD)) == {"north": None}
        start("north")
        start("west")  # late
        until(lambda: len(link.present()) == 3)
        assert link.present()["south"] == first["south"]
        assert link.present()["north"] != first["north"]
        assert dict(exchange(link, sent(b"again"), GUARD)) == answers(b"again")
