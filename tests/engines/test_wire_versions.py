"""The number of the messages' version stands for what travels: a change of one without the other
fails here.
"""

import hashlib
import json
from contextlib import nullcontext

import pytest

from fedunseen import run
from fedunseen.deploy.remote.declared import FILES, REFUSAL, SENT, paths
from fedunseen.deploy.remote.wire import PROTOCOL, unpack
from links import session
from small_federation import NAMES, Recorder, experiment, party, write_all

pytestmark = pytest.mark.usefixtures("quick_coordinator")
TRAVELS = {2: "968a95412bccb9be"}
"""PROTOCOL -> the digest of all fields that travel. Where it differs, add the next number."""


@pytest.mark.slow
def test_a_change_of_what_travels_has_another_number(tmp_path):
    data, fields = write_all(tmp_path / "data"), set()
    plain = {"privacy__aggregation": "plain"}
    for method in ("gaussian", "classifier"):
        folder = tmp_path / method
        parties = {name: party(data / name, folder / name, [], guarded=False) for name in NAMES}
        link = Recorder(parties)
        met = session(link, NAMES)
        run(
            experiment(data, method, **plain),
            folder / "run",
            meeting=lambda met=met: nullcontext(met),
        )
        for message in link.sent[NAMES[0]]:
            header, tensors = unpack(message)
            kind = header["kind"]
            # settings are those of an experiment, which both sides check
            said = {key: value for key, value in header.items() if key != "experiment"}
            fields |= {f"to {kind}: {path}" for path in paths(said)}
            fields |= {f"to {kind}: {name.partition('/')[0]}/" for name in tensors if "/" in name}
    fields |= {f"from {s.kind} {s.mode}: {s.name}" for s in (*SENT, *FILES, *REFUSAL)}
    digest = hashlib.sha256(json.dumps(sorted(fields)).encode()).hexdigest()[:16]
    assert {PROTOCOL: digest}.items() <= TRAVELS.items(), sorted(fields)
