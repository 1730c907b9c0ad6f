"""A disk that fills while replies wait on it: they are read where they lie, and a reply that finds
no room is asked for again.
"""

import shutil
import subprocess
import sys

import pytest
import torch

from fedunseen.core.errors import QuorumError, StorageError
from fedunseen.core.tensor_store import TensorStore
from fedunseen.deploy.remote import coordinator
from fedunseen.deploy.remote.link import HEADER, Spooled
from fedunseen.deploy.remote.wire import WireError, pack, unpack
from links import Inline, elsewhere
from processes import environment
from same import same
from small_runs import experiment

SMALL = """
import sys, torch
from pathlib import Path
from fedunseen.core.errors import QuorumError, StorageError
from fedunseen.core.tensor_store import TensorStore
from fedunseen.deploy.remote.link import Spooled
from fedunseen.deploy.remote.wire import pack, unpack
place = Path(sys.argv[1])
value = torch.arange(2**19, dtype=torch.float32)
stored = Spooled(place)
stored.add(pack({"client": 1}, {"w": value}))
header, tensors = unpack(stored)
assert header == {"client": 1} and torch.equal(tensors["w"], value)
try:
    TensorStore(folder=place).put(tensors)
except StorageError as error:
    print(error.code)
"""


@pytest.mark.slow
def test_a_reply_of_two_thirds_of_a_disk_is_read(tmp_path):
    """On a file system of 3 MiB; a copy would not fit."""
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    mount = f"mount -t tmpfs -o size=3m none {tmp_path}"
    shell = ["unshare", "-rm", "sh", "-c"]
    if subprocess.run([*shell, mount], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets no process mount a file system of its own")
    words = [*shell, f'{mount} && exec "$@"', "sh", sys.executable, "-c", SMALL, str(tmp_path)]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env={**environment()}, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "storage\n"), done.stderr


@pytest.mark.parametrize("piece", [1, 3, 7, 2**20])
def test_an_answer_in_pieces_of_any_length_is_the_same(piece):
    whole = pack({"client": 1, "text": "x" * 50}, {"w": torch.ones(40)})
    stored = Spooled()
    for start in range(0, len(whole), piece):
        stored.add(whole[start : start + piece])
    assert (bytes(stored), len(stored)) == (whole, len(whole))
    header, tensors = unpack(stored)
    assert (header, tensors["w"].tolist()) == ({"client": 1, "text": "x" * 50}, [1.0] * 40)


def test_a_header_that_is_too_long_stays_on_disk():
    stored = Spooled()
    stored.add((HEADER + 1).to_bytes(4, "big") + b"{" * (HEADER + 1))
    assert len(stored.head) == 4
    with pytest.raises(WireError, match="too long"):
        unpack(stored)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_coordinator")
@pytest.mark.parametrize("error", [StorageError("no room"), OSError(28, "No space left on device")])
def test_a_round_waits_for_room(error, tmp_path, monkeypatch, caplog):
    full = [error, error]

    class Full(TensorStore):
        def put(self, params):
            if full:
                raise full.pop()
            return super().put(params)

    settings = {"engine__name": "flower", "engine__mode": "simulation", "engine__patience": 60.0}
    expected = elsewhere(experiment(**settings), tmp_path / "whole", None, False)
    monkeypatch.setattr(coordinator, "SPOOLED", 0)
    monkeypatch.setattr(coordinator, "TensorStore", Full)
    found = elsewhere(experiment(**settings), tmp_path / "full", Inline(3), False)
    assert same(found, expected)
    assert not full
    assert caplog.text.count("cannot be kept") == 2


@pytest.mark.usefixtures("quick_coordinator")
def test_without_room_for_all_of_its_patience_a_round_ends(tmp_path, monkeypatch):
    class Full(TensorStore):
        def put(self, params):
            raise StorageError("no room")

    settings = {"engine__name": "flower", "engine__mode": "simulation", "engine__patience": 0.2}
    monkeypatch.setattr(coordinator, "SPOOLED", 0)
    monkeypatch.setattr(coordinator, "TensorStore", Full)
    with pytest.raises(QuorumError, match="did not answer"):
        elsewhere(experiment(**settings), tmp_path / "full", Inline(3), False)
