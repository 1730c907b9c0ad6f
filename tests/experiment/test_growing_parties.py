"""What a growing federation refuses: at the party that looks at a greeting, and at the coordinator that hears it."""

import numpy as np
import pytest
import torch

from fedunseen.core.errors import RefusedError
from fedunseen.engines.remote.wire import WireError, pack, read_holdings
from fedunseen.experiment.client_data import PartyData

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
    return {**growing, "former": {}, "tested": list("ijkl"), "open": True}, torch.from_numpy(rows)


def other_attributes(growing, rows):
    growing["attributes"] = ATTRIBUTES[::-1]


def closed(growing, rows):
    growing["open"] = False


def under_test(growing, rows):
    growing["tested"] = ["d"]


def corrected(growing, rows):
    rows[growing["classes"].index("e")] *= 2


def alike(growing, rows):
    growing["classes"][growing["classes"].index("e")] = "Two Words"


def damaged(growing, rows):
    del growing["former"]


@pytest.mark.parametrize(
    ("change", "without", "sentence"),
    [
        (
            other_attributes, (),
            "the attributes of {table} are not those of the coordinator, in their order: copy the coordinator's "
            "classes.csv and add a line for each new class",
        ),
        (
            closed, ("f",),
            "{folder} holds samples of 'f', which the coordinator does not know, and this federation takes no new "
            "classes (growth.name = 'unknown'): leave them out",
        ),
        (
            under_test, (),
            "{folder} holds samples of 'd', which the coordinator tests as a class that no one holds: leave them out, "
            "or let the coordinator mark the class as seen",
        ),
        (
            corrected, (),
            "{table} describes the class 'e' otherwise than the coordinator does: copy its line, or give the class "
            "another name if it is another",
        ),
        (damaged, (), "the coordinator's greeting describes no class space: 'former'"),
    ],
    ids=["attributes", "closed", "tested", "described otherwise", "damaged"],
)  # fmt: skip
def test_a_party_refuses_in_these_words(party, change, without, sentence):
    growing, rows = greeting(party, without)
    change(growing, rows)
    with pytest.raises(RefusedError) as said:
        party._known(party.benchmark, growing, rows)
    assert str(said.value) == sentence.format(folder=party.folder, table=party.folder / "classes.csv")


def test_a_new_class_that_looks_like_a_known_one_is_refused(party):
    growing, rows = greeting(party, ("two words",))
    alike(growing, rows)
    with pytest.raises(RefusedError) as said:
        party._known(party.benchmark, growing, rows)
    assert str(said.value).startswith(f"{party.folder / 'classes.csv'}: ")
    assert "'two words'" in str(said.value)
    assert "'Two Words'" in str(said.value)


def test_a_class_that_nobody_described_is_refused(party):
    with pytest.raises(RefusedError) as said:
        party._known(party.benchmark, greeting(party)[0], None)
    assert str(said.value) == ("the coordinator's greeting describes no classes: start it again with `fedunseen host`")


def test_what_fits_is_taken(party):
    """A class of its own, and a description from before a correction."""
    from fedunseen.federation.growth import described_as

    growing, rows = greeting(party, ("f",))
    space = party.benchmark.space
    corrected(growing, rows)
    growing["former"] = {"e": [described_as(space.semantics[space.names.index("e")])]}
    told = party._known(party.benchmark, growing, rows)
    assert "f" not in told.names


@pytest.mark.parametrize(
    ("header", "rows", "sentence"),
    [
        ({"held": "all"}, None, "it does not say which classes it holds"),
        ({"brings": ["new"]}, None, "it does not say which classes it holds"),
        ({"samples": 1}, None, "it says that it holds 1 samples of 2 classes"),
        ({"held": ["d", "i"]}, None, "it holds samples of 'i', which is tested as a class that no one holds"),
        (
            {"held": ["d", "new"], "brings": ["new"], "open": False}, torch.ones(1, 6),
            "it brings the class new, and this federation takes no new classes",
        ),
        (
            {"held": ["d", "new"], "brings": ["new"]}, None,
            "it brings 1 classes without a description of 6 numbers for each",
        ),
        (
            {"held": ["d", "new"], "brings": ["new"]}, torch.full((1, 6), torch.nan),
            "it brings 1 classes without a description of 6 numbers for each",
        ),
        (
            {"held": ["d", "new"], "brings": ["new"]}, torch.zeros(1, 6),
            "it brings a class with only zeros as description",
        ),
    ],
    ids=["held", "brings", "samples", "tested", "closed", "not described", "not finite", "zeros"],
)  # fmt: skip
def test_a_coordinator_refuses_in_these_words(header, rows, sentence):
    growing = {"classes": ["d", "e", "i"], "attributes": ATTRIBUTES, "tested": ["i"], "open": header.pop("open", True)}
    said = {"classes": 2, "samples": 20, "held": ["d", "e"], "brings": [], **header}
    answer = pack(said, {} if rows is None else {"brought": rows.double()})
    with pytest.raises(WireError) as refused:
        read_holdings(answer, growing)
    assert str(refused.value) == sentence
