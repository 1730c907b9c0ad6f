"""Classes that come and go while a run trains: the bits of a run without them, and what the two
sides refuse.
"""

import json
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from fedunseen import ClassSpace, Partition, run
from fedunseen.core.errors import DataError, RefusedError, RunDirectoryError
from fedunseen.deploy.client_data import PartyData
from fedunseen.deploy.remote.wire import WireError, pack, read_holdings
from fedunseen.experiment.assemble import assemble, load_data, partition_of
from fedunseen.federation.growth import (
    Timeline,
    Version,
    described_as,
    first_version,
    next_version,
    seen_through,
)
from fedunseen.federation.run_directory import RunDirectory
from fedunseen.pages.report import write_report
from known_names import refuses
from refusals import message_of
from same import same
from small_runs import LAST

GROWS = {**LAST, "growth.name": "unknown", "partition.join": {"2": 2}, "data.features": ["l2"]}
CLOSED = {**GROWS, "method.name": "gaussian", "method.shrinkage": 0.1, "strategy.rounds": 4}
ATTRIBUTES, NUMBERS = [f"attribute {i}" for i in range(6)], [0.9, 0.1, 0.9, 0.1, 0.9, 0.1]


@pytest.fixture(scope="module")
def expanded(make, tmp_path_factory):
    """A run of the closed form in which client 2 brings its classes in round 3."""
    return run(make(CLOSED), tmp_path_factory.mktemp("expanded") / "run")


@pytest.fixture(scope="module")
def trained(make, tmp_path_factory):
    return run(make(GROWS), tmp_path_factory.mktemp("trained") / "run")


def everything(experiment):
    benchmark = load_data(experiment, 0)
    return benchmark, partition_of(experiment, benchmark, 0)


def test_the_model_of_classes_that_came_late_is_that_of_all_from_the_start(expanded):
    """The slow way: one round in which everyone takes part and every class is known, in the order
    of their coming.
    """
    benchmark, partition = everything(expanded.experiment)
    through = seen_through(benchmark, expanded.space)
    always = Partition.of(partition.clients).restricted_to(through.train)
    federation = assemble(expanded.experiment, through, always, scaler=expanded.scaler, whole=False)
    state, _ = federation.round(federation.start())
    assert same(federation.models(state)[0], expanded)
    assert len(expanded.space.names) == 12 > expanded.metrics[0]["space"]["known"]


def test_the_report_shows_what_came_and_what_was_forgotten(trained):
    _, section = (
        write_report(trained).read_text("utf-8").split("Classes that joined and left")
    )  # it stands there once
    section = section.split("</section>")[0]
    for name, value in trained.result["stages"].items():
        assert f'<th scope="row">{name}</th>' in section
        assert f"<td>{value:.1f}</td>" in section
    assert all(
        f"<td>{value:.1f}</td></tr>" in section for value in trained.result["forgetting"].values()
    )
    added = [
        (i + 1, line["space"])
        for i, line in enumerate(trained.metrics)
        if line["space"]["since"] == i + 1
    ]
    assert section.count("<li>Round ") == len({1, *(round for round, _ in added)})
    assert f"<li>Round {added[-1][0]}: {len(added[-1][1]['added'])} new (" in section
    assert section.count('<svg class="figure') == 2


def test_before_a_class_comes_nothing_knows_of_it(trained, ran, make_folder, tmp_path):
    """Two rounds of the run are those of a benchmark that never had the later classes."""
    first = Version.from_dict(
        json.loads((trained.path / "spaces" / "000000.json").read_text())
    ).space.names
    later = set(trained.space.names[len(first) :])
    assert later
    assert trained.space.names[: len(first)] == first

    def forget(rows, arrays):
        arrays["labels"] = np.array([row[0] for row in rows[1:]])[arrays["labels"]]
        kept = ~np.isin(arrays["labels"], list(later))
        arrays.update({key: values[kept] for key, values in arrays.items()})
        rows[:] = [row for row in rows if row[0] not in later]

    poor = make_folder(tmp_path / "poor", forget)
    benchmark, partition = everything(trained.experiment)
    held = [
        {benchmark.space.names[c] for c in benchmark.labels[own]} - later
        for own in partition.clients
    ]
    lines = ["class,client", *(f"{name},{k}" for k, own in enumerate(held) for name in sorted(own))]
    (tmp_path / "holders.csv").write_text("\n".join(lines) + "\n", "utf-8")
    settings = {
        "partition.kind": "file",
        "partition.file": str(tmp_path / "holders.csv"),
        "partition.clients": 2,
    }
    settings |= {**LAST, "data.features": ["l2"], "data.root": str(poor), "strategy.rounds": 2}
    for one, other in zip(ran(settings).metrics, trained.metrics, strict=False):
        for key in ("losses", "zsl", "gzsl_harmonic", "bytes_up"):
            assert one[key] == other[key], key


def test_the_merged_model_stays_when_classes_come(trained, ran, tmp_path):
    """A round of the later federation, from the parameters of the earlier one, is the run's third
    round.
    """
    short = ran({**GROWS, "strategy.rounds": 3}, "three")
    (tmp_path / "three" / "checkpoints" / "000003.safetensors").unlink()
    checkpoint = RunDirectory(short.path).newest_checkpoint(torch.device("cpu"))
    assert checkpoint.round == 2
    benchmark, partition = everything(short.experiment)
    through = seen_through(benchmark, short.space)
    restricted = partition.restricted_to(through.train)
    federation = assemble(short.experiment, through, restricted, scaler=short.scaler, whole=False)
    result = federation.engine.round(
        2, checkpoint.server, checkpoint.params, checkpoint.clients, [0, 1, 2]
    )
    assert same(result.params, short)


def test_accuracies_are_told_apart_by_when_classes_came(expanded):
    before, after = expanded.metrics[1], expanded.metrics[2]
    space, stages = after["space"], after["stages"]
    assert before["stages"].keys() == {"old", "from round 1", "unseen"}
    assert stages.keys() == {"old", "new", "from round 1", "from round 3", "unseen"}
    assert (space["since"], space["known"], space["added"]) == (3, 12, space["gained"])
    new, seen = len(space["added"]), space["seen"]
    assert new == 12 - before["space"]["known"] > 0
    assert stages["from round 1"] == stages["old"]
    # All seen classes count the same: their accuracy is the mean over the groups.
    assert (stages["old"] * (seen - new) + stages["new"] * new) / seen == pytest.approx(
        after["gzsl_seen"]
    )
    fallen = before["stages"]["from round 1"] - expanded.metrics[-1]["stages"]["from round 1"]
    assert expanded.result["forgetting"]["from round 1"] == pytest.approx(max(fallen, 0.0))


@pytest.mark.slow
def test_a_described_class_is_unseen_until_somebody_holds_it(ran):
    done = ran({**CLOSED, "growth.name": "described", "partition.leave": {"0": 3}})
    spaces = [line["space"] for line in done.metrics]
    assert [space["known"] for space in spaces] == [12] * 4
    *_, gained, left = spaces
    assert (spaces[0]["unseen"], gained["unseen"]) == (4 + len(gained["gained"]), 4)
    assert "added" not in gained
    assert left["left"]
    assert set(left["left"]).isdisjoint(gained["gained"])
    assert left["seen"] == gained["seen"]  # the model has learned them
    assert "left" in done.metrics[3]["stages"]


@pytest.mark.slow
def test_a_class_arrives_at_a_client_that_has_long_been_there(ran):
    """And a class that no one holds becomes known later, as a description alone."""
    done = ran({**CLOSED, "partition.join": {}, "growth.arrive": {"d": 1, "k": 2}})
    spaces = [line["space"] for line in done.metrics]
    assert [space["known"] for space in spaces] == [10, 11, 12, 12]
    assert [(space.get("added"), space.get("gained")) for space in spaces[1:3]] == [
        (["d"], ["d"]),
        (["k"], None),
    ]
    assert done.space.names[-2:] == ("d", "k")
    assert (done.params["count"][10:] > 0).tolist() == [True, False]


def correction(place, name, *numbers):
    """Write a file that describes a class anew; return the setting that it is valid from the second
    round on.
    """
    lines = ["name", *ATTRIBUTES], [name, *map(str, numbers)]
    (place / "new.csv").write_text("".join(",".join(line) + "\n" for line in lines), "utf-8")
    return {"growth.corrected": {"1": str(place / "new.csv")}}


@pytest.mark.slow
def test_a_corrected_description_holds_from_its_round_on(ran, make_folder, tmp_path):
    settings = {**CLOSED, "partition.join": {}, "growth.name": "described", "strategy.rounds": 2}
    done = ran(settings | correction(tmp_path, "d", *NUMBERS))
    assert done.space.semantics[3].tolist() == NUMBERS
    assert done.metrics[1]["space"]["corrected"] == ["d"]
    # The slow way: a folder that has described the class so all along.
    always = make_folder(
        tmp_path / "data",
        lambda rows, arrays: rows.__setitem__(4, ["d", "seen", *map(str, NUMBERS)]),
    )
    plain = {
        key: value for key, value in CLOSED.items() if key not in ("growth.name", "partition.join")
    }
    plain |= {"data.root": str(always), "strategy.rounds": 1}
    assert same(ran(plain, "plain"), done)


def test_a_damaged_class_space_is_refused(ran, make, tmp_path, cut_short):
    cut_short(make(CLOSED), tmp_path / "run", after=3)
    path = tmp_path / "run" / "spaces" / "000002.json"
    result = json.loads(path.read_text())
    path.write_text(
        json.dumps({**result, "semantics": [[2 * x for x in row] for row in result["semantics"]]})
    )
    sentence = (
        " holds a damaged class space: restore it, or run the experiment again in another --out"
    )
    with refuses(f"{path.parent}{sentence}", RunDirectoryError):
        ran(CLOSED, resume=True)


def test_an_unknown_class_is_not_corrected_and_a_known_one_not_added(ran, make, tmp_path):
    benchmark, partition = everything(make(CLOSED))
    last = Timeline(make(CLOSED).growth, benchmark, partition).version(9).space.names[-1]
    with refuses(
        f"growth.corrected: {tmp_path / 'new.csv'} describes the class {last!r}, which no one "
        "knows before round 1 (counted from 0): leave it out, or correct it later"
    ):
        ran(CLOSED | correction(tmp_path, last, 1, 0, 0, 0, 0, 0))
    start, held = first_version(benchmark.space), list(benchmark.space.names[:3])
    same_name = "the new class 'Two words' has the name of the known class 'two words': "
    same_name += "leave it out if they are the same, and otherwise give it another name"
    hidden = (
        r"the name of the new class 'two\u200dwords' has invisible characters: give it another name"
    )
    cyrillic = "\u0434\u0432\u0430 \u0441\u043b\u043e\u0432\u0430"  # another script
    for name, why in (
        ("Two words", same_name), ("\uff34wo words", same_name.replace("Two", "\uff34wo")),
        ("two\u200dwords", hidden), (cyrillic, ""),
    ):  # fmt: skip
        with refuses(why, DataError) if why else nullcontext():
            next_version(start, 0, held=held, holders=held, added={name: np.ones(6)})


def test_a_class_that_is_neither_seen_nor_unseen_stays_so():
    space = ClassSpace(("cat", "dog", "ant", "owl"), np.eye(4), tuple("abcd"), [0], [], [2])
    version = next_version(first_version(space), 0, held=["cat"], holders=["cat"])
    assert (version.space.seen.tolist(), version.space.unseen.tolist()) == ([0], [2])


NEW = {"held": ["d", "new"], "brings": ["new"]}


@pytest.fixture(scope="module")
def party(make_folder, tmp_path_factory):
    return PartyData(make_folder(tmp_path_factory.mktemp("party") / "data"))


def greeting(party, without=()):
    """What a coordinator says that knows all classes but some, and tests the last four as unseen
    ones.
    """
    space = party.benchmark.space
    known = [place for place, name in enumerate(space.names) if name not in without]
    growing = {
        "classes": [space.names[place] for place in known],
        "attributes": ATTRIBUTES,
        "groups": {},
    }
    growing |= {
        "seen": list(range(len(known) - 4)),
        "unseen": list(range(len(known) - 4, len(known))),
    }
    return growing | {"former": {}, "tested": list("ijkl"), "open": True}, torch.from_numpy(
        space.semantics[known]
    )


def corrected(growing, rows):
    rows[growing["classes"].index("e")] *= 2


@pytest.mark.parametrize(
    ("change", "without", "start"),
    [
        (lambda growing, rows: growing.update(attributes=ATTRIBUTES[::-1]), (),
         "the attributes of {table} are not those of the coordinator, in their order: "),
        (lambda growing, rows: growing.update(open=False), ("f",),
         "{folder} holds samples of 'f', which the coordinator does not know, and this federation "
         "takes no new "),
        (lambda growing, rows: growing.update(tested=["d"]), (),
         "{folder} holds samples of 'd', which the coordinator tests as a class that no one "
         "holds: "),
        (corrected, (), "{table} describes the class 'e' otherwise than the coordinator does: "),
        (lambda growing, rows: growing.pop("former"), (),
         "the coordinator's greeting describes no class space: 'former'"),
        (lambda growing, rows: growing["classes"].__setitem__(growing["classes"].index("e"), "Two "
                                                                                             "Words"),
         ("two words",), "{table}: "),
    ],
    ids=["attributes", "closed", "tested", "described otherwise", "damaged", "alike"],
)  # fmt: skip
def test_a_party_refuses(party, change, without, start):
    growing, rows = greeting(party, without)
    change(growing, rows)
    sentence = message_of(party._known, party.benchmark, growing, rows, error=RefusedError)
    assert sentence.startswith(
        start.format(folder=party.folder, table=party.folder / "classes.csv")
    )


def test_a_class_that_nobody_described_is_refused_and_a_party_s_own_and_a_corrected_one_are_taken(
    party,
):
    growing, rows = greeting(party, ("f",))
    sentence = message_of(party._known, party.benchmark, growing, None, error=RefusedError)
    assert "the coordinator's greeting describes no classes" in sentence
    space = party.benchmark.space
    corrected(growing, rows)
    growing["former"] = {"e": [described_as(space.semantics[space.names.index("e")])]}
    assert "f" not in party._known(party.benchmark, growing, rows).names


@pytest.mark.parametrize(
    ("header", "rows", "sentence"),
    [
        ({"held": "all"}, None, "it does not say which classes it holds"),
        ({"brings": ["new"]}, None, "it does not say which classes it holds"),
        ({"samples": 1}, None, "it says that it holds 1 samples of 2 classes"),
        ({"held": ["d", "i"]}, None, "it holds samples of 'i', which is tested as a class that no "
                                     "one holds"),
        ({**NEW, "open": False}, torch.ones(1, 6), "it brings the class new, and this federation "
                                                   "takes no new classes"),
        (
            {"held": ["d", "zebra\u00ad"], "brings": ["zebra\u00ad"]}, torch.ones(1, 6),
            r"it brings the class 'zebra\xad', whose name has invisible characters",
        ),
        (NEW, None, "it brings 1 classes without a description of 6 numbers for each"),
        (NEW, torch.full((1, 6), torch.nan), "it brings 1 classes without a description of 6 "
                                             "numbers for each"),
    ],
    ids=["held", "brings", "samples", "tested", "closed", "invisible", "not described", "not "
                                                                                        "finite"],
)  # fmt: skip
def test_a_coordinator_refuses_in_these_words(header, rows, sentence):
    growing = {
        "classes": ["d", "e", "i"],
        "attributes": ATTRIBUTES,
        "tested": ["i"],
        "open": header.get("open", True),
    }
    said = {"classes": 2, "samples": 20, "held": ["d", "e"], "brings": [], **header}
    said.pop("open", None)
    answer = pack(said, {} if rows is None else {"brought": rows.double()})
    assert message_of(read_holdings, answer, growing, 10.0, error=WireError) == sentence
