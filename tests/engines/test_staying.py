"""The process of a party that stays: it answers one after the other, and ends with its run or its
node.
"""

import json
import os
import stat
import threading
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from pathlib import Path

import pytest

from fedunseen.core.errors import FedUnseenError
from fedunseen.deploy.flower import staying
from processes import GUARD, until


def test_a_partys_process_answers_whoever_may_read_its_state_folder_until_it_is_done(tmp_path):
    state, done = (
        tmp_path / ("a-folder-of-a-name-that-is-too-long-for-a-socket/" * 3),
        threading.Event(),
    )
    state.mkdir(parents=True)
    relay, body, node = (
        state / staying.RELAY,
        os.urandom(3_000_000),
        {"name": "north", "state": str(state)},
    )
    given = (state, lambda message: message[::-1], done, os.getpid())
    thread = threading.Thread(target=staying.serve_party, args=given, daemon=True)
    thread.start()
    until(relay.exists)
    assert [staying.ask_party("", node, message) for message in (b"ab", b"", body)] == [
        b"ba",
        b"",
        body[::-1],
    ]
    where = Path(json.loads(relay.read_bytes())["path"])
    assert [stat.S_IMODE(path.stat().st_mode) for path in (relay, where.parent)] == [0o600, 0o700]
    with pytest.raises(AuthenticationError):
        Client(str(where), family="AF_UNIX", authkey=b"another key")
    assert staying.ask_party("", node, b"still here") == b"ereh llits"
    done.set()
    thread.join(GUARD)
    assert not thread.is_alive()
    assert not relay.exists()
    assert not where.exists()


def test_a_process_whose_node_has_ended_ends_too(tmp_path):
    staying.serve_party(
        tmp_path, bytes, threading.Event(), 2**22 + 1
    )  # no process has such a number
    assert not (tmp_path / staying.RELAY).exists()


def test_a_party_that_cannot_start_or_has_no_name_is_said(tmp_path):
    with pytest.raises(FedUnseenError, match="lacks the party's name"):
        staying.ask_party("os:abort", {"data": "here"}, b"")
    with pytest.raises(
        FedUnseenError,
        match=r"of party north does not start; party\.log in its state folder says why",
    ):
        staying.ask_party("os:abort", {"name": "north", "state": str(tmp_path / "state")}, b"")


def test_a_process_that_ends_while_it_answers_is_said(tmp_path):
    at, key = str(tmp_path / "socket"), b"key"
    with Listener(at, family="AF_UNIX", authkey=key) as listener:
        (tmp_path / staying.RELAY).write_text(json.dumps({"path": at, "key": key.hex()}))
        threading.Thread(target=lambda: listener.accept().close(), daemon=True).start()
        with pytest.raises(
            FedUnseenError, match=r"of party north ended; party\.log in its state folder says why"
        ):
            staying.ask_party("", {"name": "north", "state": str(tmp_path)}, b"")
