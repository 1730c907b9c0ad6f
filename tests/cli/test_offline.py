"""``fedunseen offline``: a federation in files ends with the bits of the run in one process; bad
files are refused.
"""

import json
import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from fedunseen import Experiment, __version__, load_run, run
from fedunseen.deploy.client_data import PartyData
from fedunseen.deploy.offline import files
from fedunseen.deploy.offline.party import facts_of
from fedunseen.deploy.remote.party import local_update
from fedunseen.deploy.secagg.enrolment import Credentials, Enrolment, enrol
from fedunseen.experiment.deal import deal
from fedunseen.experiment.forget import forget
from fedunseen.methods.closed_form.statistics import statistics, sums_sha256
from known_names import accounted
from processes import sets
from same import noted, same

pytestmark = pytest.mark.usefixtures("place")

NAMES = ("north", "south", "west", "east")
SMALL = {
    "data.train_per_class": 6, "data.test_per_class": 3, "evaluation.theory": False, "evaluation.embedding": False,
}  # fmt: skip
EVERYTHING = range(10_000)  # samples of a party
PLANNED = ("digit-pairs-gaussian", *sets(SMALL))


@pytest.fixture(scope="module")
def dealt(tmp_path_factory):
    """Folders of four parties, their credentials, and those of a federation that no one here
    belongs to.
    """
    folder = tmp_path_factory.mktemp("offline")
    deal(
        Experiment.load("digit-pairs-gaussian", {**SMALL, "partition.clients": 4}),
        folder / "data",
        NAMES,
    )
    for name in ("kits", "strange"):
        enrol(folder / name, NAMES)
    return folder


@pytest.fixture
def answered(offline):
    """A plan and the answers of all four."""
    offline.plan()
    for name in NAMES:
        offline.act("answer", name)


def plan_removal(offline, name, removing, *given, **more):
    return offline.plan(name, *given, of=("--forget", "run", "--removing", removing), **more)


@pytest.mark.parametrize(
    "way", [(), pytest.param(("--plain",), marks=pytest.mark.slow)], ids=["masked", "plain"]
)
def test_files_end_with_the_bits_of_the_run_in_one_process(way, offline, place, works):
    last = {
        "evaluation.selection": "last",
        "method.calibration": True,
        "partition.clients": 4,
        "strategy.rounds": 1,
    }
    alone = run(Experiment.load("digit-pairs-gaussian", {**SMALL, **last}), place / "alone")
    assert ("warning" in offline.plan("plan", NAMES, *way).err) == bool(way)
    sent = {}
    for name in NAMES:
        assert ("warning" in offline.act("answer", name, more=way).err) == bool(way)
        sent[f"{name}-plan.fedunseen"] = (place / f"{name}-plan.fedunseen").stat().st_size
    offline.merge("plan.fedunseen", *sent, kits=None)  # as *.fedunseen names them
    merged = load_run(place / "run")
    assert merged.result["sums_sha256"] == alone.result["sums_sha256"]
    noted("files", "four parties by file, masked or not", merged.result["sums_sha256"])
    assert same(merged, alone)
    assert merged.metrics[0]["bytes_up"] == sum(sent.values())
    assert merged.manifest["command"][:3] == ["fedunseen", "offline", "merge"]
    np.save(place / "rows.npy", np.load(place / "data/north/features.npz")["features"][:2])
    works("predict", "run", "rows.npy")
    for name, signer, masked in (
        ("plan", "coordinator", "under masks"),
        ("north-plan", "north", "alone nothing"),
    ):
        shown = works("offline", "show", f"{name}.fedunseen").out
        assert (f"signed by {signer}" in shown, masked in shown) == (True, not way)


@pytest.mark.slow
def test_what_a_party_may_not_send_it_does_not_and_the_ledger_lists_the_answer(
    offline, works, refused, monkeypatch
):
    offline.plan()
    assert "nothing bounds" in offline.act(
        "answer", "north", more=("--epsilon-limit", "3"), call=refused
    )
    with monkeypatch.context() as patch:
        patch.setattr(
            "fedunseen.methods.closed_form.statistics.LARGEST", 119 * 127**2
        )  # 119 samples of 8 bits fit
        assert "120 samples of 8 bits do not fit 64 bits" in offline.act(
            "answer", "north", call=refused
        )
    assert not Path("north-plan.fedunseen").exists()
    assert not list(Path("fedunseen-north/ledger").glob("released-*"))
    offline.act("answer", "north")
    history = works("ledger", "fedunseen-north", "--json").answer
    assert [line["kind"] for line in history["releases"]] == ["budget", "file"]
    assert history["bytes"] == Path("north-plan.fedunseen").stat().st_size
    said = works("ledger", "fedunseen-north").err
    assert re.fullmatch(
        r"sent:   1 message, .* in 1 run\nspent:  nothing bounds what it reveals, .*\n", said
    )


@pytest.mark.slow
@accounted
def test_each_plan_is_paid_for_once_whatever_its_run_is_called(offline, works, refused):
    private = {
        "data.features": ["l2"], "evaluation.selection": "last", "method.calibration": True, "privacy.clip": 1.0,
        "privacy.name": "sample-level", "privacy.epsilon": 4.0, "privacy.noise_from": "system",
    }  # fmt: skip
    offline.plan(of=(*PLANNED, *sets(private)))
    plan, limits = (
        files.read(Path("plan.fedunseen"), "plan"),
        ("--consent", "again", "--epsilon-limit", 7),
    )
    lie(
        "plan", {"plan": replace(plan.plan, nonce="00" * 16).content()}, out="twin"
    )  # of the same run
    few = offline.act("answer", "north", more=(*limits, "--delta-limit", 1e-6), call=refused)
    assert "would spend a delta of 1e-05 after 0" in few
    loose = ("--epsilon-limit", 7, "--delta-limit", 0.1)
    join = (
        "join",
        "127.0.0.1",
        "--insecure",
        "--name",
        "north",
        "--data",
        "data/north",
        "--patience",
        0,
    )
    for said in (offline.act("answer", "north", more=loose, call=refused), refused(*join, *loose)):
        assert "--delta-limit 0.1 is not below one over 120, the number of your samples" in said
    paid = offline.act("answer", "north", more=limits)
    where = f"0 of an epsilon of 7 spent, counted in {Path('fedunseen-north').resolve()}: name it"
    assert f"budget: {where} with --state in every run\n" in paid.err
    offline.act("answer", "north", out="again", more=limits)  # the same bytes, which cost nothing
    assert "an epsilon of 3.98 after 3.98" in offline.act(
        "answer", "north", "twin", more=limits, call=refused
    )
    assert not Path("north-twin.fedunseen").exists()
    spent, _ = works("ledger", "fedunseen-north", "--json").answer["spent"]
    assert spent == pytest.approx(3.977, abs=1e-3)  # of the noise, which is rounded up
    offline.act("answer", "north", "twin", more=(*limits[:-1], 8))


@pytest.mark.slow
def test_a_plan_that_lies_about_itself_is_refused_in_one_sentence(offline, refused):
    offline.plan()
    plan = files.read(Path("plan.fedunseen"), "plan")
    hello, tree = plan["hello"], plan["hello"]["experiment"]
    damaged = (
        {**tree, "data": list(tree["data"].items())},
        {**tree, "strategy": None},
        {**tree, "method": "gaussian"},
    )
    for experiment in (list(tree.items()), *damaged, None):
        lie("plan", {"hello": {**hello, "experiment": experiment}}, out="list")
        assert "list.fedunseen is damaged" in offline.act("answer", "north", "list", call=refused)
        assert "list.fedunseen is damaged" in refused("offline", "show", "list.fedunseen")
    lie("plan", {"parties": [*NAMES, "x" * 201]}, out="list")
    assert "a list in its header is damaged" in offline.act("answer", "north", "list", call=refused)
    lie("plan", {"k": 1, "plan": replace(plan.plan, sums=4).content()}, out="later")
    offline.act("withdraw", "south", "later", out="gone")
    assert "has withdrawn" in offline.act("answer", "south", "later", call=refused)


@pytest.mark.slow
def test_a_masked_answer_says_nothing_alone_and_is_given_once(answered, offline, refused):
    plan = files.read(Path("plan.fedunseen"))
    elements = [
        files.read(path).tensors["elements"].numpy() for path in Path().glob("*-plan.fedunseen")
    ]
    assert len(elements) == 4
    bits = np.unpackbits(np.concatenate(elements).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 5 / np.sqrt(
        4 * bits.size
    )  # five standard deviations of fair coins
    first = Path("north-plan.fedunseen").read_bytes()
    offline.act("answer", "north", out="again")
    assert Path("again.fedunseen").read_bytes() == first
    stored = next(Path("fedunseen-north/ledger").glob("answer-*"))
    stored.write_bytes(first[:-1])
    assert "restore it from a copy" in offline.act("answer", "north", out="third", call=refused)
    # A coordinator that signs the same plan for other parties, or for another quantization, gets no
    # second answer.
    twin = {
        "parties": list(NAMES[:3]),
        "hello": {**plan["hello"], "clients": 3, "names": list(NAMES[:3])},
    }
    data = {**plan["hello"]["experiment"]["data"], "quantization": 16}
    other = {
        "hello": {**plan["hello"], "experiment": {**plan["hello"]["experiment"], "data": data}}
    }
    for changed, name in ((twin, "twin"), (other, "other")):
        lie("plan", changed, out=name)
    assert "answered another file with the same plan" in offline.act(
        "answer", "north", "twin", "t", call=refused
    )
    fresh = offline.act("answer", "north", "other", "t", ("--state", "fresh"), call=refused)
    assert "scales features to [8.0] bits, and data.quantization = 16" in fresh
    assert not Path("t.fedunseen").exists()


@pytest.mark.slow
@accounted
def test_a_second_federation_over_the_same_samples_spends_the_same_budget(offline, refused):
    """`strange` is of another authority: samples and budgets of one --state count for both."""
    noise = {"data.features": ["l2"], "privacy.name": "sample-level", "privacy.clip": 1.0,
             "privacy.epsilon": 4.0, "privacy.noise_from": "system", "evaluation.selection": "last"}  # fmt: skip
    limit = ("--epsilon-limit", 7, "--delta-limit", 1e-3)
    new = "note: fedunseen-north is new and knows of no earlier sums"
    for plan, kits in (("first", "kits"), ("second", "strange")):
        offline.plan(plan, of=(*PLANNED, *sets(noise)), kits=kits)
    assert new in offline.act("answer", "north", "first", more=limit).err
    given = {"kits": "strange", "call": refused}
    why = offline.act("answer", "north", "second", more=limit, **given)
    assert "under another plan, and that one was of another federation" in why
    both = ("--consent", "again", "--consent", "federations")
    why = offline.act("answer", "north", "second", more=(*both[:2], *limit), **given)
    assert "in another federation east, south, west took part" in why
    why = offline.act("answer", "north", "second", more=(*both, *limit), **given)
    assert "would spend an epsilon of 3.98 after 3.98 of earlier runs" in why
    assert not Path("north-second.fedunseen").exists()
    more = (*both, "--epsilon-limit", 9, "--delta-limit", 1e-3)
    told = offline.act("answer", "north", "second", more=more, kits="strange").err
    assert "allowed by --consent again --consent federations: sums of some" in told
    assert "note: " not in told


@pytest.mark.slow
def test_a_second_plan_needs_withdrawals_or_consent(offline, works, refused):
    offline.plan()
    for name in NAMES[:3]:
        offline.act("answer", name)
    assert "no answer of east" in offline.merge(who=NAMES[:3], call=refused)
    assert "cannot withdraw" in offline.act("withdraw", "north", out="w", call=refused)
    offline.plan("bare", NAMES[:3])
    bare = offline.act("answer", "north", "bare", call=refused)
    assert "east took part in that one, without a withdrawal" in bare
    assert works("ledger", "fedunseen-north", "--json").answer["runs"] == 1
    offline.act("withdraw", "east", out="gone")
    assert "has withdrawn" in offline.act("answer", "east", call=refused)
    offline.plan("second", NAMES[:3], "--withdrawal", "gone.fedunseen")
    offline.round("second", who=NAMES[:3])
    offline.plan("third")
    assert "released under another plan" in offline.act("answer", "north", "third", call=refused)
    again = ("--consent", "again")
    differs = offline.act("answer", "north", "third", more=again, call=refused)
    assert (
        "the roster differs from that of an opened sum by east" in differs
    )  # it would be its sums
    offline.plan("loose", of=(*PLANNED, "--set", "privacy.dropouts=allow"))
    loose = offline.act("answer", "north", "loose", more=again, call=refused)
    assert "must consent with --consent dropouts" in loose
    offline.act("answer", "north", "loose", more=(*again, "--consent", "dropouts"))
    forged = files.read(Path("second.fedunseen"))
    forged.header["withdrawals"][0]["plans"].append("00" * 32)
    with pytest.raises(Exception, match="that its party has not signed"):
        files.withdrawals(forged, forged.enrolment)


@pytest.mark.slow
def test_a_newcomer_needs_consent(offline, refused):
    offline.plan("few", NAMES[:3])
    offline.act("answer", "north", "few")
    offline.plan()
    assert "east took no part in that one" in offline.act(
        "answer", "north", out="more", call=refused
    )


@pytest.mark.slow
def test_changed_data_need_consent(answered, offline, refused):
    arrays = dict(np.load("data/north/features.npz"))
    for name in arrays.keys() & {"features", "labels", "split"}:
        arrays[name] = np.concatenate([arrays[name], arrays[name][:1]])
    arrays["features"][-1] /= 2
    np.savez("data/north/features.npz", **arrays)
    offline.plan("more")
    assert "samples have changed since" in offline.act("answer", "north", "more", call=refused)
    arrays["features"] = 1 - arrays["features"]  # all others, or the same ones written anew
    np.savez("data/north/features.npz", **arrays)
    assert "--consent again" in offline.act("answer", "north", "more", call=refused)
    offline.act("answer", "north", "more", more=("--consent", "again"))
    assert "asked the same parties" in offline.act("answer", "south", "more", call=refused)


def reference(place, without, names=NAMES):
    """Return the digest of a run in one process that never had some samples of some parties: name
    -> positions.
    """
    done, rows, labels = load_run(place / "run"), [], []
    for name in names:
        part = np.load(place / "data" / name / "features.npz")
        kept = np.setdiff1d(np.arange(len(part["labels"])), without.get(name, ()))
        rows.append(part["features"][kept])
        labels += part["labels"][kept].tolist()
    codes, _ = done.scaler.codes(np.concatenate(rows))
    ids = torch.tensor([done.space.names.index(label) for label in labels])
    sums = statistics(
        torch.from_numpy(codes), ids, done.space, quantization=done.method.quantization
    )
    return sums_sha256(sums, done.method.quantization)


@pytest.mark.slow
def test_removals_of_several_parties_are_one_masked_sum(answered, offline, place, refused):
    """North removes everything and south some samples: the coordinator sees their total alone."""
    offline.merge()
    plan_removal(offline, "gone", "north,south,west")
    chosen = range(0, 40, 2)
    agreed, some = ("--consent", "removal"), [word for one in chosen for word in ("--samples", one)]
    for one in (NAMES[:2], NAMES[:1], NAMES[1:2]):  # asked one by one, they would show the others'
        plan_removal(offline, names := ",".join(one), names, one, "--plain")
        assert "for a removal in clear the owner must consent with --consent removal" in (
            offline.act("answer", one[-1], names, "x", ("--plain",), call=refused)
        )
    hello = files.read(Path("gone.fedunseen"))["hello"]
    assert hello["plan_before"] == files.read(Path("plan.fedunseen"), "plan").plan.digest
    without = {key: value for key, value in hello.items() if key != "names"}
    for crafted in ({**hello, "names": ["x", *NAMES[1:]]}, without):  # east, too, would send all
        lie("gone", {"hello": crafted}, out="crafted")
        assert "which parties remove samples, and which hide" in offline.act(
            "answer", "east", "crafted", "x", agreed, call=refused
        )
    for name in ("north", "east"):  # what is left of the total would be the sums of east alone
        assert "the plan keeps all samples of 1 parties" in offline.act(
            "answer", name, "gone", "x", call=refused
        )
    offline.act("answer", "north", "gone", more=agreed)
    plan_removal(offline, "all", ",".join(NAMES))
    assert "keeps all samples of 0 parties" in offline.act(
        "answer", "south", "all", "x", some, call=refused
    )
    for name in ("south", "west"):
        offline.act("answer", name, "gone", more=(*some, *agreed))
    assert "--samples are for a removal" in offline.act(
        "answer", "east", "gone", "x", (*some, *agreed), call=refused
    )
    assert "0 samples" in offline.act("answer", "east", "gone", more=agreed).err
    assert "no answer of east" in offline.merge(
        plan="gone", out="left", who=NAMES[:3], call=refused
    )
    offline.merge(plan="gone", out="left")
    left = load_run(place / "left")
    assert left.result["sums_sha256"] == reference(
        place, {"north": EVERYTHING, "south": chosen, "west": chosen}
    )
    assert (
        left.result["sums_sha256"]
        != load_run(place / "run").result["sums_sha256"]
        == reference(place, {})
    )
    samples = len(np.load(place / "data/north/features.npz")["labels"]) + 40
    assert left.result["forgotten"] == [f"{samples} samples of north, south, west"]
    # Nothing is removed twice, and few parties do not hide each other.
    plan_removal(offline, "again", "north,south,east")
    assert "removed by another plan" in offline.act(
        "answer", "south", "again", "x", (*some, *agreed), call=refused
    )
    plan_removal(offline, "few", "west,east")
    assert "ask for a plan with 3" in offline.act("answer", "east", "few", "x", call=refused)
    offline.act("answer", "east", "few", more=agreed)
    assert "--removing names 'oz'" in plan_removal(offline, "bad", "north,oz", call=refused)
    # A lying coordinator pads the list with parties that it does not ask.
    plan = files.read(Path("few.fedunseen"), "plan")
    for names, why in (
        (["west", "x", "y"], "that it does not ask"),
        (["west", "west", "west"], "a field of the wrong kind"),
        (
            [],
            "were released under another plan",
        ),  # so it is no removal, and the sums would be released again
    ):
        hello = {**plan["hello"], "removing": names}
        facts = facts_of(hello, plan.greeting, plan.enrolment, 1)
        lie("few", {"hello": hello, "plan": {**plan["plan"], **facts}}, out="padded")
        assert why in offline.act("answer", "west", "padded", "x", call=refused)
    assert not any(Path(name).exists() for name in ("x.fedunseen", "bad.fedunseen"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("experiment", "engine"), None),
        (("experiment", "evaluation"), None),
        (("experiment", "method"), {}),
        (("experiment", "data", "features"), "x"),
        (("shape",), None),
        (("space",), None),
    ],
)
def test_a_greeting_with_values_of_another_kind_is_refused(path, value, place, offline, refused):
    offline.plan("honest")
    plan = files.read(Path("honest.fedunseen"), "plan")
    hello = json.loads(json.dumps(plan["hello"]))
    inner = hello
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    try:
        facts = facts_of(hello, plan.greeting, plan.enrolment, 1)
    except (AttributeError, KeyError, TypeError):
        facts = {}
    lie("honest", {"hello": hello, "plan": {**plan["plan"], **facts}}, out="crafted")
    sentence = offline.act("answer", "north", "crafted", "x", call=refused)
    assert path[-1] in sentence
    if value != "x":
        assert "is needed" in refused("offline", "show", "crafted.fedunseen")
    assert not Path("x.fedunseen").exists()


@pytest.mark.slow
def test_three_parties_withdraw_and_are_removed_by_file(place, offline, refused):
    enrol(Path("three"), three := NAMES[:3])
    kits = {"kits": "three"}
    offline.plan("masked", three, **kits)
    assert (
        "only a plan with --plain can follow"
        in offline.act("withdraw", "west", "masked", "gone", **kits).err
    )
    withdrawn = "--withdrawal", "gone.fedunseen"
    assert "takes 3 at least" in offline.plan("next", three[:2], *withdrawn, **kits, call=refused)
    offline.plan("next", three[:2], "--plain", *withdrawn, **kits)
    offline.round("next", who=three[:2], more=("--plain",), **kits)
    assert load_run(place / "run").result["sums_sha256"] == reference(place, {}, three[:2])
    plan_removal(offline, "remove", "north", three[:1], "--plain", **kits)
    offline.round("remove", "left", three[:1], ("--plain",), **kits)
    assert load_run(place / "left").result["sums_sha256"] == reference(
        place, {"north": EVERYTHING}, three[:2]
    )
    forget(load_run(place / "run"), "south", place / "only")
    for out, party in (("left", 0), ("only", 1)):
        counts = [status["samples"] for status in json.loads(Path(out, "parties.json").read_text())]
        assert [count > 0 for count in counts] == [party == 1, party == 0]
        assert not load_file(Path(out, "evaluation.safetensors"))["client_counts"].any()


def lie(name, changes=None, tensors=None, signer="kits/coordinator", out=None):
    """Sign a file again, with other fields or other numbers."""
    one, key = (
        files.read(Path(f"{name}.fedunseen")),
        json.loads(Path(signer, "secagg.key").read_text())["ed25519"],
    )
    fields = {
        key: one[key]
        for key in one.header
        if key not in ("kind", "version", "federation", "signature")
    }
    given = (
        one["kind"],
        fields | (changes or {}),
        tensors or one.tensors,
        Enrolment.load(Path(signer)),
    )
    Path(f"{out or name}.fedunseen").write_bytes(files.signed(*given, bytes.fromhex(key)))


ANSWER = Path("north-plan.fedunseen")


def rewrite(change):
    return lambda: ANSWER.write_bytes(change(ANSWER.read_bytes()))


def add_one():
    lie(
        ANSWER.stem,
        tensors={"elements": files.read(ANSWER).tensors["elements"] + 1},
        signer="kits/north",
    )


WRITTEN = f'"version": "{__version__}"'.encode()
SHORT = {"elements": torch.zeros(5, dtype=torch.int64)}
HARMS = {  # what is done to the answer of north, what the merge says
    "cut": (rewrite(lambda data: data[:-40]), "not signed by north, or was changed"),
    "flipped": (rewrite(lambda data: data[:-1] + bytes([data[-1] ^ 1])), "not signed by north, or "
                                                                         "was changed"),
    "older": (rewrite(lambda data: data.replace(b"file 2\n", b"file 1\n", 1)), "another version of "
                                                                               "fedunseen"),
    "of another version": (
        rewrite(lambda data: data.replace(WRITTEN, b'"version": "0.0.9"', 1)), "was written by "
                                                                               "fedunseen 0.0.9",
    ),
    "huge": (lambda: os.truncate(ANSWER, 2**32), "are the most"),
    "signed by another": (lambda: lie(ANSWER.stem, signer="kits/south"), "is not signed by north"),
    "signed by a stranger": (lambda: lie(ANSWER.stem, signer="strange/north"), "whose key the plan "
                                                                               "does not know"),
    "short": (lambda: lie(ANSWER.stem, tensors=SHORT, signer="kits/north"), "another length than "
                                                                            "the plan"),
    "without a sum": (add_one, "the answers have no sum"),
    "missing": (ANSWER.unlink, "cannot be read"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("harm", HARMS)
def test_a_bad_file_is_refused_and_nothing_is_written(harm, answered, offline, refused):
    change, why = HARMS[harm]
    change()
    assert why in offline.merge(call=refused, kits=None)
    assert not Path("run").exists()


@pytest.mark.slow
def test_files_that_do_not_belong_together_are_refused(answered, offline, refused):
    shutil.copy("north-plan.fedunseen", "copy.fedunseen")
    assert "are both of north" in offline.merge(
        *Path().glob("*-plan.fedunseen"), "copy.fedunseen", call=refused
    )
    assert "no answer of north" in offline.merge(who=NAMES[1:], call=refused)
    offline.plan("other")
    assert "belongs to another plan" in offline.merge(
        *Path().glob("*-plan.fedunseen"), plan="other", call=refused
    )
    Path("plan.coordinator.json").unlink()
    assert "merge where the plan was written" in offline.merge(call=refused)
    assert not Path("run").exists()


@pytest.mark.slow
def test_a_party_refuses_what_it_should_not_answer(offline, refused):
    offline.plan()
    offline.act("answer", "south")
    offline.plan("clear", NAMES, "--plain")
    for words, why in (
        ({"kits": "strange"}, "the plan is signed by an unknown key"),
        ({"more": ("--state", "fedunseen-south")}, "is the ledger of another data folder"),
        ({"more": ("--consent", "all")}, "--consent all: choose among"),
        ({"plan": "clear"}, "the plan asks for sums in clear"),
        (
            {"more": ("--set", "data.quantization=16")},
            "data.quantization = 16 is not the coordinator's, 8",
        ),
        ({"more": ("--set", "privacy.epsilon=9")}, "--set privacy.epsilon: a party can set only"),
        ({"plan": "south-plan"}, "is a file of the kind 'answer', not 'plan'"),
    ):
        assert why in offline.act("answer", "north", **words, call=refused)
    assert not list(Path().glob("north-*"))


def classes_held():
    """Return party -> names of the classes that it holds."""
    found = {}
    for name in NAMES:
        benchmark = PartyData(Path("data") / name).benchmark
        held = np.unique(benchmark.labels[benchmark.train])
        found[name] = [benchmark.space.names[c] for c in held]
    return found


@pytest.mark.slow
def test_a_party_answers_no_plan_with_a_class_that_it_may_not_send(offline, refused):
    held = classes_held()
    enrol(Path("fixed"), NAMES, classes={**held, "south": held["south"][1:]})
    offline.plan(kits="fixed")
    said = offline.act("answer", "south", kits="fixed", call=refused)
    assert said.startswith(f"this party holds samples of {held['south'][0]!r}, a class that")
    assert not Path("south-plan.fedunseen").exists()
    assert not [path for path in Path("fedunseen-south").rglob("*") if "released" in path.name]
    assert not Path("fedunseen-south/releases.jsonl").exists()  # nothing is charged
    offline.act("answer", "north", kits="fixed")
    # a plan of the same parties that lacks the rule is of another federation.json
    offline.plan("free", kits="kits")
    assert "by an unknown key" in offline.act("answer", "north", "free", kits="fixed", call=refused)


@pytest.mark.slow
@pytest.mark.parametrize("kits", ["kits", "fixed"])
def test_the_coordinator_refuses_a_file_that_claims_a_class(kits, offline, refused, monkeypatch):
    """The control: without a rule the same lie is merged."""
    enrol(Path("fixed"), NAMES, classes=classes_held())
    offline.plan("plan", NAMES, "--plain", kits=kits)

    def lies(*given):
        reply, state = local_update(*given)
        sums = dict(reply.update)
        mine = int(torch.nonzero(sums["count"])[0])
        stolen = int(torch.nonzero(sums["count"] == 0)[0])
        for name in ("count", "total"):
            sums[name] = sums[name].clone()
            sums[name][[mine, stolen]] = sums[name][[stolen, mine]]
        return replace(reply, update=sums), state

    for name in NAMES:
        with monkeypatch.context() as patch:
            if name == "south":
                patch.setattr("fedunseen.deploy.offline.party.local_update", lies)
            offline.act("answer", name, more=("--plain",), kits=kits)
    if kits == "kits":
        offline.merge(kits=None)
        return
    said = offline.merge(kits=None, call=refused)
    assert said.startswith("the answer of south is refused: its statistics hold samples of ")
    assert not Path("run").exists()


def test_credentials_need_no_engine(works, monkeypatch):
    monkeypatch.setitem(sys.modules, "websockets", None)
    works("certs", "--parties", "a,b,c", "--out", "new", "--authority", "authority")
    assert Credentials.load(Path("new/a")).enrolment.names == ["a", "b", "c"]
    works("certs", "renew", "--new-keys", "b", "--authority", "authority", "--out", "one")
    assert Credentials.load(Path("one/b")).enrolment.serial == 2


@pytest.mark.slow
def test_a_plan_has_one_answer_whatever_state_folder_it_comes_from(offline, refused):
    """By default it is in the working directory. Two answers to one plan have the same masks, and
    their difference would be a sample that came between; so would a withdrawal show an answer.
    """
    note, other = Path("kits/north/answered.json"), ("--state", "other")
    offline.plan()
    why = offline.act("answer", "north", more=("--min-samples", 100), call=refused)
    assert "no class here has 100 samples" in why
    assert not note.exists()
    offline.act("answer", "north")
    assert note.stat().st_mode & 0o777 == 0o600
    offline.act("answer", "north", out="same", more=("--state", "third"))
    assert Path("same.fedunseen").read_bytes() == Path("north-plan.fedunseen").read_bytes()
    again, without = ("answer", "north", "plan", "t"), ("withdraw", "north", "plan", "t")
    assert "has given something else" in offline.act(*without, other, call=refused)
    with np.load("data/north/features.npz") as held:
        arrays = dict(held)
    fewer = {name: arrays[name][1:] for name in ("features", "labels", "split")}
    np.savez("data/north/features.npz", **{**arrays, **fewer})
    why = offline.act(*again, (*other, "--consent", "again"), call=refused)
    assert f"from {Path('fedunseen-north').resolve()}, and their difference" in why
    assert not Path("t.fedunseen").exists()
    Path("fedunseen-north").rename("kept")  # a new folder in its place, as in a new container
    assert "has given something else" in offline.act(*again, call=refused)
    shutil.rmtree("fedunseen-north")
    Path("kept").rename("fedunseen-north")
    noted = note.read_text()
    note.write_text("{")
    assert "is damaged, and says which plans" in offline.act(*again, other, call=refused)
    note.write_text(noted)
    offline.plan("later")
    offline.act("withdraw", "north", "later", "gone", other)
    given = ("answer", "north", "later", "t", ("--consent", "again"))
    assert "has given something else" in offline.act(*given, call=refused)
    note.unlink()  # positive control: without the note, the second answer is made
    offline.act(*again, other)
    first, second = (
        files.read(Path(f"{name}.fedunseen"), "answer").tensors["elements"]
        for name in ("north-plan", "t")
    )
    assert 0 < (second - first).count_nonzero() < len(first)  # the other masks cancel
