"""What every way to take part promises at each party and at the coordinator, whatever carries the
messages.
"""

import json
from datetime import datetime

from fedunseen.deploy.cli.health import examined, summary
from fedunseen.deploy.releases import Releases


def check_site(state, kinds, masked=True, healthy=True):
    """Check what a party's ``--state`` folder holds after a run: the history of what left, health,
    messages.

    ``kinds``: those of the messages that have left, in this order, without the budget's.
    """
    lines = Releases(state).lines
    sent = [line for line in lines if "bytes" in line]
    assert [line["kind"] for line in sent] == list(kinds)
    assert all(len(line["sha256"]) == 64 and line["bytes"] > 0 for line in sent)
    assert sum(line["kind"] == "budget" for line in lines) == 1
    found = summary(lines)
    assert (found["messages"], found["runs"]) == (len(sent), 1)
    status = json.loads((state / "status.json").read_text())
    assert (status["over"], status["connected"]) == (True, False)
    assert examined(state)["healthy"] is healthy
    said = (state / "messages.log").read_text("utf-8").splitlines()
    assert all(datetime.fromisoformat(line.split()[0]).tzinfo is not None for line in said)
    assert status["message"] in said[-1]
    assert (state.stat().st_mode & 0o777, (state / "messages.log").stat().st_mode & 0o777) == (
        0o700,
        0o600,
    )


def check_audited(state):
    """Check that a party's folder answers health and ledger, however often it took part."""
    assert summary(Releases(state).lines)["messages"] > 1
    assert examined(state)["healthy"]
    assert (state / "messages.log").read_text("utf-8").endswith("the run is over\n")


def check_home(home, run):
    """Check that a party can compare its model's sums with the coordinator's."""
    ours, theirs = (json.loads((path / "result.json").read_text()) for path in (home, run))
    assert len(ours["sums_sha256"]) == 64
    assert ours["sums_sha256"] == theirs["sums_sha256"]


def check_coordinator(run):
    """Check a coordinator's run directory: its result, its report and its health."""
    assert (run / "report.html").stat().st_size > 10_000
    assert examined(run)["healthy"]


def check_log(run, names):
    """Check the log that a coordinator keeps of a run over a link: who joined, what was measured,
    and whose updates a round has.
    """
    text = (run / "engine" / "federation.log").read_text("utf-8")
    assert all(f"{name} has joined" in text for name in names)
    line = next(line for line in text.splitlines() if "round 1 of" in line)
    assert " H " in line
    assert line.endswith(f"from {len(names)} of {len(names)} parties")
