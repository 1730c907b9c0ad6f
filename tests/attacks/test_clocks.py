"""Clocks that are moved: no sum opens twice, no budget starts again, and no certificate that has
ended comes back.
"""

import os
import time
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta

import pytest

from fedunseen import run
from fedunseen.core.errors import RefusedError
from fedunseen.deploy import releases as history
from fedunseen.deploy.releases import Releases
from fedunseen.deploy.secagg import driver
from links import session
from masked_parties import Parties, refusal
from small_federation import NAMES, Recorder, experiment, party, write_all

pytest.importorskip("websockets", reason="pip install 'fedunseen[masked]'")

from fedunseen.core.validity import Validity
from fedunseen.deploy import certs
from fedunseen.deploy.remote.link import Join
from fedunseen.deploy.websocket import kit, server
from fedunseen.deploy.websocket.client import Connection

YEAR = timedelta(days=365)


def moved(monkeypatch, module, by):
    """Move the clock of a module."""

    class Moved(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + by

    monkeypatch.setattr(module, "datetime", Moved)


@pytest.mark.parametrize("by", [-YEAR, YEAR], ids=["back", "forward"])
def test_a_budget_does_not_start_again(tmp_path, monkeypatch, by):
    Releases(tmp_path, 1.0).charge("run", (0.8, 1e-6), "plan")
    moved(monkeypatch, history, by)
    with pytest.raises(RefusedError) as caught:
        Releases(tmp_path, 1.0).charge("another", (0.8, 1e-6), "plan")
    assert caught.value.code == "epsilon-limit"
    Releases(tmp_path, 1.0).charge("another", (0.1, 1e-6), "plan")  # what is left
    assert Releases(tmp_path).spent()[0] == pytest.approx(0.9)
    years = {line["time"][:4] for line in Releases(tmp_path).lines}
    assert len(years) == 2  # the moved clock was used


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("by", [-1, 0, 1], ids=["back", "same", "forward"])
def test_a_sum_opens_once_at_any_time(tmp_path, monkeypatch, by, restart):
    parties, clock = Parties(4, tmp_path), time.time_ns
    assert parties.sum().roster
    if restart:
        parties.restart()
    monkeypatch.setattr(driver.time, "time_ns", lambda: clock() + by * 10**18)
    said = refusal(parties.keys, 0, attempt=driver.time.time_ns() // 10**6)
    if restart or by >= 0:
        assert "has opened sum 1" in said
    else:
        assert "needs a larger number" in said
    parties.keys(1)  # the next one


def test_a_certificate_that_has_ended_stays_ended_when_the_coordinators_clock_goes_back():
    end = datetime.now(UTC)
    valid = {"a": Validity(end - YEAR, end), "b": Validity(end - YEAR, end + 2 * YEAR)}
    connections = server.Connections(("a", "b"), {}, valid)
    try:
        connections.clock = lambda: datetime.now(UTC) - timedelta(hours=1)
        assert not connections.fault("a")
        connections.clock = lambda: datetime.now(UTC) + timedelta(hours=1)
        assert connections.fault("a")
        connections.clock = lambda: datetime.now(UTC) - timedelta(hours=1)
        assert connections.fault("a")
        assert not connections.fault("b")
    finally:
        connections.loop.close()


@pytest.mark.parametrize("by", [-YEAR, timedelta(), YEAR], ids=["back", "now", "forward"])
def test_both_sides_judge_their_own_certificate_by_their_own_clock(tmp_path, monkeypatch, by):
    """A coordinator whose clock is wrong does not let an honest party take part with what has
    ended.
    """
    certs.make(tmp_path / "kits", "127.0.0.1", NAMES, 2)
    north, coordinator = tmp_path / "kits" / "north", tmp_path / "kits" / "coordinator"

    class Moved(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + by

    monkeypatch.setattr(kit.datetime, "datetime", Moved)
    if not by:
        assert kit.party_key(north, "north")
        assert kit.server_files(coordinator)
        return
    for call in (lambda: kit.party_key(north, "north"), lambda: kit.server_files(coordinator)):
        with pytest.raises(RefusedError, match="this machine's clock says"):
            call()
    with pytest.raises(RefusedError, match="this machine's clock says"):
        Connection(Join(tmp_path / "state", "127.0.0.1", 1, north, "north", 1.0))


@pytest.mark.slow
def test_a_partys_newest_state_survives_a_clock_that_goes_back(tmp_path):
    """Files that a later clock has dated do not push out what was just written."""
    data, said = write_all(tmp_path / "data"), []
    plain = {"privacy__aggregation": "plain", "strategy__name": "scaffold", "strategy__rounds": 7}
    parties = {name: party(data / name, tmp_path / name, said, guarded=False) for name in NAMES}

    def change(name, header):
        """Date what was written so far into the future."""
        if (name, header.get("kind"), header.get("round")) == ("north", "round", 5):
            for path in (tmp_path / "north").glob("*/after-*"):
                ahead = path.stat().st_mtime_ns + 10**15
                os.utime(path, ns=(ahead, ahead))

    met = session(Recorder(parties, change), NAMES)
    run(
        experiment(data, "classifier", **plain),
        tmp_path / "run",
        meeting=lambda: nullcontext(met),
    )
    kept = sorted(path.stem[-1] for path in (tmp_path / "north").glob("*/after-*"))
    assert kept == ["3", "4", "5", "6"]
    assert [line for line in said if line.startswith("round 7")]
    assert not [line for line in said if "missing or damaged" in line]
