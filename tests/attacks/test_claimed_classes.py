"""A party that claims classes of others: what it does to the model, and who may send which class.

The attack is that of a party in plain: beside its own samples it makes up some of every class of
the others. Each refusal has its positive control, in which the same statistics are merged.
"""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import links
import small_runs
from fedunseen import Experiment, run
from fedunseen.core.errors import FedUnseenError, QuorumError, RefusedError
from fedunseen.core.parameters import of_each_client
from fedunseen.deploy.client_data import PartyData
from fedunseen.deploy.remote.party import Party
from fedunseen.deploy.remote.refusals import CLASSES
from fedunseen.deploy.remote.wire import pack, unpack
from fedunseen.deploy.secagg.enrolment import (
    CLASS_NOT_ALLOWED,
    FEDERATION,
    Credentials,
    Enrolment,
    enrol,
)
from fedunseen.deploy.site import Owner, Site
from fedunseen.experiment.assemble import assemble, load_data, partition_of
from fedunseen.experiment.deal import deal
from fedunseen.methods.closed_form.influence import MOVED
from fedunseen.pages.report import write_report
from fedunseen.strategies import Reply

pytestmark = pytest.mark.usefixtures("quick_coordinator")
NAMES = ("north", "south", "west", "east")
LIAR = 9


# What the attack does


class Ten:
    """Ten parties in one process, all that they send, and what the tenth makes up."""

    def __init__(self):
        settings = {"partition.clients": 10, "evaluation.selection": "last"}
        experiment = Experiment.load("digit-pairs-gaussian", settings)
        self.benchmark = b = load_data(experiment, 0)
        self.partition = partition_of(experiment, b, 0)
        self.federation = assemble(experiment, experiment.task.client_data(b), self.partition)
        state, _ = self.federation.round(self.federation.start())
        self.parts = of_each_client(state.server)
        self.own = set(b.labels[self.partition.clients[LIAR]].tolist())
        self.honest = np.array([c for c in b.space.seen if c not in self.own])

    def forged(self, samples):
        """Return what the tenth sends with so many samples of another class for each foreign
        one.
        """
        b, rng = self.benchmark, np.random.default_rng(0)
        rows, labels = list(self.partition.clients[LIAR]), []
        labels += b.labels[rows].tolist()
        for claimed, real in zip(self.honest, np.roll(self.honest, 7), strict=True):
            train = b.train[b.labels[b.train] == real]
            drawn = rng.choice(train, min(samples, len(train)), replace=False)
            times = max(1, samples // len(train))
            rows += [row for row in drawn for _ in range(times)]
            labels += [claimed] * (len(drawn) * times)
        inputs = self.federation.inputs[torch.tensor(rows)]
        return self.federation.method.statistics(inputs, torch.tensor(labels))

    def reply(self, client, sums):
        return Reply(client, sums, int((sums["count"] > 0).sum()), int(sums["count"].sum()))

    def merged(self, sums):
        """Return the server's state and the parameters once the tenth has sent these."""
        strategy = self.federation.strategy
        replies = [self.reply(k, part) for k, part in {**self.parts, LIAR: sums}.items()]
        assert not any(map(strategy.check, replies))
        start = self.federation.start()
        return strategy.merge(start.server, start.params, replies, 0)

    def accuracy(self, params):
        """Return the accuracy, in percent, of the nine others' classes among the seen ones."""
        b, method = self.benchmark, self.federation.method
        rows = b.test_seen[np.isin(b.labels[b.test_seen], self.honest)]
        model = self.federation.fit_heads(params)
        inputs = self.federation.inputs[torch.from_numpy(rows)]
        scores = method.scores(model, inputs, method.semantics).numpy()[:, b.space.seen]
        return 100 * float((b.space.seen[scores.argmax(1)] == b.labels[rows]).mean())


@pytest.fixture(scope="module")
def ten():
    return Ten()


@pytest.mark.slow
def test_one_of_ten_parties_ruins_the_classes_of_the_others(ten):
    """The positive control: without a rule the statistics pass every check and are merged."""
    assert ten.accuracy(ten.merged(ten.parts[LIAR])[1]) == pytest.approx(90.7, abs=0.1)
    assert ten.accuracy(ten.merged(ten.forged(60))[1]) < 50
    assert ten.accuracy(ten.merged(ten.forged(600))[1]) == pytest.approx(0.2, abs=0.2)


def test_what_the_partition_does_not_give_a_client_is_refused_by_name(ten):
    labels, names = ten.benchmark.labels, ten.benchmark.space.names
    allowed = {k: set(labels[own].tolist()) for k, own in enumerate(ten.partition.clients)}
    start, strategy = ten.federation.start(), ten.federation.strategy
    lie = ten.reply(LIAR, ten.forged(1))
    try:
        strategy.restrict(allowed, names)
        assert not any(strategy.check(ten.reply(k, part)) for k, part in ten.parts.items())
        first = names[min(ten.honest)]
        assert strategy.check(lie).startswith(f"its statistics hold samples of {first!r}, a class")
        with pytest.raises(FedUnseenError, match=f"^client {LIAR}: its statistics hold"):
            strategy.merge(start.server, start.params, [lie], 0)
        # a sum without a count is no way around it, nor is a client that is not listed
        only_total = {**ten.parts[LIAR], "total": ten.parts[LIAR]["total"].clone()}
        only_total["total"][int(ten.honest[0])] = 1
        assert repr(names[int(ten.honest[0])]) in strategy.check(ten.reply(LIAR, only_total))
        assert strategy.check(replace(ten.reply(0, ten.parts[0]), client=77))
    finally:
        strategy.restrict(None, ())


@pytest.mark.parametrize(("samples", "seen"), [(1, False), (10, True), (60, True), (600, True)])
def test_the_report_names_the_party_that_moves_the_classes_of_others(ten, samples, seen):
    """And no honest one, although an honest party moves a mean further than one made-up sample."""
    state, _ = ten.merged(ten.forged(samples))
    found = ten.federation.strategy.notes(state)["influence"]
    assert {one["client"] for one in found["conspicuous"]} == ({LIAR} if seen else set())
    assert all(one["shared"] for one in found["clients"])
    if samples == 600:
        (liar,) = found["conspicuous"]
        assert liar["count"] == len(ten.honest)
        assert liar["moved"][0] > 1


@pytest.mark.parametrize(
    ("kind", "alpha", "clients"), [("iid", None, 10), ("dirichlet", 0.1, 10), ("dirichlet", 0.5, 3)]
)
def test_honest_parties_are_not_named(kind, alpha, clients):
    """docs/research/security.md has more partitions and seeds. A large part moves a mean far."""
    settings = {"partition.kind": kind, "partition.clients": clients, "run.seed": 3}
    settings |= {"evaluation.selection": "last"} | ({"partition.alpha": alpha} if alpha else {})
    experiment = Experiment.load("digit-pairs-gaussian", settings)
    benchmark = load_data(experiment, 3)
    held = experiment.task.client_data(benchmark)
    federation = assemble(experiment, held, partition_of(experiment, benchmark, 3))
    state, _ = federation.round(federation.start())
    found = federation.strategy.notes(state.server)["influence"]
    assert found["conspicuous"] == []
    assert len(found["clients"]) == clients
    if kind == "dirichlet":
        assert max(one["moved"][0] for one in found["clients"]) > MOVED


# Between machines


def small(**more):
    more = {"partition__clients": 4, "method__name": "eszsl", **more}
    return small_runs.experiment("digit-pairs-gaussian", **more)


def all_of(folder):
    """Return a party that sends samples that second moments show: it has few."""
    held = PartyData(folder)
    held.consent = ("moments",)
    return held


class Table:
    """A link to parties in this process; ``change(name, header, answer)`` may return another
    answer.
    """

    def __init__(self, folder, data, kits):
        self.data, self.change = data, lambda name, header, answer: answer
        self.heard = []
        self.party = {
            name: Party(
                all_of(data / name).prepare, Site(folder / name, Owner(data / name, kits / name))
            )
            for name in NAMES
        }

    def present(self):
        return dict.fromkeys(NAMES, "first")

    def ask(self, name, message):
        header, _ = unpack(message)
        answer = self.change(name, header, self.party[name].answer(message))
        self.heard.append((header["kind"], name, answer))
        return links.answered(answer)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    out = tmp_path_factory.mktemp("dealt") / "data"
    deal(small(), out, NAMES)
    return out


@pytest.fixture(scope="module")
def held(data):
    """Party -> names of its classes."""
    found = {}
    for name in NAMES:
        benchmark = PartyData(data / name).benchmark
        classes = np.unique(benchmark.labels[benchmark.train])
        found[name] = [benchmark.space.names[c] for c in classes]
    return found


@pytest.fixture(scope="module")
def kits(tmp_path_factory, held):
    """Credentials that fix classes, and ``free``, of the same federation without that."""
    out = tmp_path_factory.mktemp("kits")
    enrol(out, NAMES, out / "authority", held)
    relabelled(out, out / "free", {})
    return out


def relabelled(kits, out, classes):
    """Write credentials of the same parties with other classes, signed by the same authority."""
    key = bytes.fromhex((kits / "authority" / "federation.key").read_text())
    newer = replace(Enrolment.load(kits / "coordinator"), classes=classes).signed(key)
    for name in (*NAMES, "coordinator"):
        (out / name).mkdir(parents=True)
        (out / name / FEDERATION).write_bytes(newer.text())
        (out / name / "secagg.key").write_bytes((kits / name / "secagg.key").read_bytes())
    return out


def hosted(link, out, kits, **more):
    settings = {"engine__name": "nvflare", "engine__mode": "deployment", **more}
    met = links.session(link, NAMES, kit=kits / "coordinator")
    return run(small(**settings), out, meeting=lambda: nullcontext(met))


def swapped(name, header, answer):
    """South calls its first class by the name of one of north's: as many classes and samples as it
    said.
    """
    if (name, header["kind"]) != ("south", "round"):
        return answer
    said, tensors = unpack(answer)
    if "update/count" not in tensors:  # it was asked how sure models are
        return answer
    for key in ("update/count", "update/total"):
        rows = tensors[key].clone()
        c = int(torch.nonzero(tensors["update/count"])[0])
        stolen = int(torch.nonzero(tensors["update/count"] == 0)[0])
        rows[[c, stolen]] = rows[[stolen, c]]
        tensors[key] = rows
    return pack(said, tensors)


@pytest.mark.slow
def test_a_coordinator_refuses_by_name_who_sends_a_class_of_others(data, kits, tmp_path, caplog):
    control = Table(tmp_path / "control", data, kits / "free")
    control.change = swapped
    done = hosted(control, tmp_path / "free", kits / "free")
    assert done.metrics[0]["participants"] == [0, 1, 2, 3]  # the lie is merged
    shared = {one["client"]: one["shared"] for one in done.result["influence"]["clients"]}
    assert shared[1] == 1
    assert "Who moves whose classes" in write_report(done).read_text("utf-8")
    link = Table(tmp_path / "parties", data, kits)
    link.change = swapped
    done = hosted(link, tmp_path / "run", kits)
    assert done.metrics[0]["participants"] == [0, 2, 3]  # the others go on
    why = done.metrics[0]["dropped"]["1"]
    assert why.startswith("its statistics hold samples of ")
    assert f"the reply of south is refused: {why}" in caplog.text


@pytest.mark.slow
def test_honest_parties_end_with_the_bits_of_a_run_without_the_rule(data, kits, tmp_path):
    runs = [
        hosted(Table(tmp_path / where.name, data, where), tmp_path / f"{where.name}-run", where)
        for where in (kits, kits / "free")
    ]
    assert len({one.result["sums_sha256"] for one in runs}) == 1


def test_a_party_that_declares_more_classes_than_it_may_send_takes_no_part(
    data, kits, held, tmp_path
):
    """Of trained methods too, whose updates cannot be checked: classes are their weights."""

    def boasts(name, header, answer):
        if (name, header["kind"]) != ("south", "hello"):
            return answer
        return pack({"classes": len(held["south"]) + 1, "samples": 10_000})

    link = Table(tmp_path / "parties", data, kits)
    link.change = boasts
    with pytest.raises(QuorumError, match=r"south could not take part \(it declares"):
        hosted(link, tmp_path / "run", kits, engine__patience=0)
    assert "round" not in [kind for kind, name, _ in link.heard if name == "south"]


@pytest.mark.parametrize("how", ["plain", "masked"])
def test_a_party_refuses_to_send_a_class_that_it_may_not(how, data, kits, held, tmp_path):
    """Under masks this is the only check: the coordinator cannot see whose classes a total has."""
    less = {name: tuple(sorted(own)) for name, own in held.items()}
    less["south"] = tuple(sorted(held["south"][1:]))
    strict = relabelled(kits, tmp_path / "strict", less)
    link = Table(tmp_path / "parties", data, strict)
    more = {"privacy__aggregation": how, "engine__patience": 0}
    with pytest.raises(QuorumError, match="south"):
        hosted(link, tmp_path / "run", strict, **more)
    error = link.party["south"].error
    assert (type(error), error.code) == (RefusedError, CLASS_NOT_ALLOWED)
    assert str(error).startswith(f"this party holds samples of {held['south'][0]!r}, a class that")
    assert [kind for kind, name, _ in link.heard if name == "south"] == ["hello"]
    assert not list((tmp_path / "parties" / "south").rglob("after-*"))
    assert not list((tmp_path / "parties" / "south").rglob("released-*"))


@pytest.mark.parametrize("how", ["plain", "masked"])
@pytest.mark.parametrize("lacking", ["coordinator", "party"])
def test_classes_that_disagree_are_refused_at_each_party(how, lacking, data, kits, tmp_path):
    """Also a coordinator that has dropped the rule: signed once, it is the parties' as well."""
    free = kits / "free"
    at_party, at_host = (kits, free) if lacking == "coordinator" else (free, kits)
    link = Table(tmp_path / "parties", data, at_party)
    more = {"privacy__aggregation": how, "engine__patience": 0}
    with pytest.raises(QuorumError):
        hosted(link, tmp_path / "run", at_host, **more)
    assert {party.error.code for party in link.party.values()} == {CLASSES}
    assert {kind for kind, _, _ in link.heard} == {"hello"}


def test_a_party_without_the_list_refuses_a_coordinator_that_has_it(data, kits, tmp_path):
    bare = tmp_path / "bare"
    for name in NAMES:
        (bare / name).mkdir(parents=True)
    link = Table(tmp_path / "parties", data, bare)
    with pytest.raises(QuorumError):
        hosted(link, tmp_path / "run", kits, engine__patience=0)
    assert {party.error.code for party in link.party.values()} == {CLASSES}


# The list itself


def test_classes_are_signed_and_older_lists_still_load(kits, held, tmp_path):
    mine = Credentials.load(kits / "north").enrolment
    assert {name: list(own) for name, own in mine.classes.items()} == {
        name: sorted(own) for name, own in held.items()
    }
    assert Enrolment.load(kits / "free" / "north").classes == {}
    assert b"classes" not in (kits / "free" / "north" / FEDERATION).read_bytes()
    tree = json.loads((kits / "north" / FEDERATION).read_bytes())
    tree["classes"]["north"].append("zzz")
    forged = tmp_path / FEDERATION
    forged.write_text(json.dumps(tree))
    with pytest.raises(RefusedError, match="is not signed by its authority"):
        Enrolment.load(tmp_path)


@pytest.mark.parametrize(
    "harm",
    [
        lambda classes: classes.pop("north"),
        lambda classes: classes.update(stranger=["a"]),
        lambda classes: classes.update(north=[]),
        lambda classes: classes.update(north="abc"),
        lambda classes: classes.update(north=["a", "a"]),
        lambda classes: classes.update(north=["a", 3]),
        lambda classes: classes.update(north=["a", "b\n"]),
    ],
    ids=["missing", "stranger", "none", "text", "twice", "number", "line"],
)
def test_a_damaged_list_of_classes_is_refused(harm, kits, tmp_path):
    tree = json.loads((kits / "north" / FEDERATION).read_bytes())
    harm(tree["classes"])
    with pytest.raises(RefusedError, match="is damaged"):
        Enrolment.read(json.dumps(tree).encode(), str(Path("x")))
