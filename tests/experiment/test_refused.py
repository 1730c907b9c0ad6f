"""Settings that do not go with the data or with each other: one sentence each, before anything is written.

The rules have a test of their own; here is what the sections refuse, and what is only seen in the data.
"""

import re

import pytest

from fedunseen import run
from fedunseen.core.errors import FedUnseenError

BACKDOOR = {"attack.name": "backdoor", "attack.triggers": ["object"], "attack.rounds": "2-3"}
GROWS = {
    "growth.name": "unknown", "partition.join": {"2": 2}, "data.features": ["l2"], "method.name": "gaussian",
    "strategy.rounds": 4,
}  # fmt: skip
PRIVATE = {"privacy.name": "client-level", "privacy.clip": 1.0, "privacy.noise": 0.5}
REFUSED = [
    (BACKDOOR, {"attack.clients": [0, 0]}, "attack: clients = [0, 0]: name each malicious client once, "),
    (BACKDOOR, {"attack.clients": [3]}, "attack.clients: there is no client 3; the 3 clients are 0 to 2"),
    (BACKDOOR, {"attack.clients": []}, "attack.clients: there is nothing in it: give at least one, or leave it out"),
    (BACKDOOR, {"attack.targets": ["zèbra"]}, "attack.targets: unknown class 'zèbra': did you mean 'zèbre'? (known: "),
    (BACKDOOR, {"attack.objects": ["d"], "attack.targets": ["d"]}, "attack.objects: 'd' is the target itself: "),
    (BACKDOOR, {"attack.triggers": ["style"]}, "attack.triggers: 'style' changes images, and data.name = 'folder' "),
    (BACKDOOR, {"attack.folder": "somewhere"}, "attack.folder holds images, and data.name = 'folder' gives none "),
    (BACKDOOR, {"partition.kind": "iid"}, "attack.likeness = 'similar': there is no class that client 0 does not hold"),
    (GROWS, {"partition.join": {}}, "growth.name = 'unknown', but every class has its holder in round 0 and none "),
    (GROWS, {"growth.arrive": {"dd": 1}}, "growth.arrive: unknown class 'dd'"),
    (GROWS, {"growth.arrive": dict.fromkeys("ijkl", 1)}, "in round 0 (counted from 0) every known class has a holder"),
    ({}, {"growth.arrive": {"d": 1}}, "growth.arrive has no effect with growth.name = 'none': set growth.name to "),
    ({}, {"privacy.clip": 1.0}, "privacy: clip has no effect with name = 'none': "),
    ({}, {"privacy.name": "client-level"}, "privacy: clip is missing: "),
    ({}, {"privacy.name": "client-level", "privacy.clip": 1}, "privacy: noise and epsilon are both missing: "),
    ({}, {"privacy.range": 6}, "privacy: range has no effect with aggregation = 'plain': "),
    (PRIVATE, {"privacy.delta": 0.5}, "privacy.delta = 0.5 allows to give one of the 3 clients away: "),
]


@pytest.mark.parametrize(("base", "settings", "start"), REFUSED)
def test_what_makes_no_sense_is_refused_before_anything_is_written(base, settings, start, make, tmp_path):
    with pytest.raises(FedUnseenError, match=f"^{re.escape(start)}"):
        run(make({"evaluation.selection": "last", **base, **settings}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
