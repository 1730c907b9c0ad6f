"""What a growing federation refuses: at the party that looks at a greeting, and at the coordinator that hears it."""

import re

import numpy as np
import pytest
import torch

from fedunseen.core.errors import RefusedError
from fedunseen.engines.remote.wire import WireError, pack, read_holdings
from fedunseen.experiment.client_data import PartyData
from known_names import refuses

NEW = {"held": ["d", "new"], "brings": ["new"]}
ATTRIBUTES = [f"attribute {i}" for i in range(6)]


@pytest.fixture(scope="module")
def party(make_folder, tmp_path_factory):
    return PartyData(make_folder(tmp_path_factory.mktemp("party") / "data"))


def greeting(party, without=()):
    """What a coordinator says that knows all classes but some, and tests the last four as unseen ones."""
    space = party.benchmark.space
    names = [name for name in space.names if name not in without]
    rows = np.stack([space.semantics[space.names.index(name)] for name in names])
    seen = [i for i, name in enumerate(names) if name not in "ijkl"]
    unseen = [i for i, name in enumerate(names) if name in "ijkl"]
    growing = {"classes": names, "attributes": ATTRIBUTES, "groups": {}, "seen": seen, "unseen": unseen}
    return {**growing, "tested": list("ijkl"), "open": True}, torch.from_numpy(rows)


def corrected(growing, rows):
    rows[growing["classes"].index("e")] *= 2


@pytest.mark.parametrize(
    ("change", "without", "start"),
    [
        (lambda growing, rows: growing.update(attributes=ATTRIBUTES[::-1]), (),
         "the attributes of {table} are not those of the coordinator, in their order: "),
        (lambda growing, rows: growing.update(open=False), ("f",),
         "{folder} holds samples of 'f', which the coordinator does not know, and this federation takes no new "),
        (lambda growing, rows: growing.update(tested=["d"]), (),
         "{folder} holds samples of 'd', which the coordinator tests as a class that no one holds: "),
        (corrected, (), "{table} describes the class 'e' otherwise than the coordinator does: "),
        (lambda growing, rows: growing.pop("tested"), (),
         "the coordinator's greeting describes no class space: 'tested'"),
        (lambda growing, rows: growing["classes"].__setitem__(growing["classes"].index("e"), "Two Words"),
         ("two words",), "{table}: "),
    ],
    ids=["attributes", "closed", "tested", "described otherwise", "damaged", "alike"],
)  # fmt: skip
def test_a_party_refuses(party, change, without, start):
    growing, rows = greeting(party, without)
    change(growing, rows)
    start = start.format(folder=party.folder, table=party.folder / "classes.csv")
    with pytest.raises(RefusedError, match=f"^{re.escape(start)}"):
        party._known(party.benchmark, growing, rows)


def test_a_class_that_nobody_described_is_refused(party):
    with pytest.raises(RefusedError, match="the coordinator's greeting describes no classes"):
        party._known(party.benchmark, greeting(party)[0], None)


def test_what_fits_is_taken(party):
    """A class of its own."""
    result = party._known(party.benchmark, *greeting(party, ("f",)))
    assert "f" not in result.names


@pytest.mark.parametrize(
    ("header", "rows", "sentence"),
    [
        ({"held": "all"}, None, "it does not say which classes it holds"),
        ({"brings": ["new"]}, None, "it does not say which classes it holds"),
        ({"samples": 1}, None, "it says that it holds 1 samples of 2 classes"),
        ({"held": ["d", "i"]}, None, "it holds samples of 'i', which is tested as a class that no one holds"),
        ({**NEW, "open": False}, torch.ones(1, 6), "it brings the class new, and this federation takes no new classes"),
        (NEW, None, "it brings 1 classes without a description of 6 numbers for each"),
        (NEW, torch.full((1, 6), torch.nan), "it brings 1 classes without a description of 6 numbers for each"),
        (NEW, torch.zeros(1, 6), "it brings a class with only zeros as description"),
    ],
    ids=["held", "brings", "samples", "tested", "closed", "not described", "not finite", "zeros"],
)  # fmt: skip
def test_a_coordinator_refuses_in_these_words(header, rows, sentence):
    growing = {"classes": ["d", "e", "i"], "attributes": ATTRIBUTES, "tested": ["i"], "open": header.get("open", True)}
    said = {"classes": 2, "samples": 20, "held": ["d", "e"], "brings": [], **header}
    said.pop("open", None)
    answer = pack(said, {} if rows is None else {"brought": rows.double()})
    with refuses(sentence, WireError):
        read_holdings(answer, growing)
