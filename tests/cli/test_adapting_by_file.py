"""``fedunseen offline plan --adapt``: rounds by file end with the bits of the run in one
process.
"""

import json
from pathlib import Path

import pytest

from fedunseen import Experiment, load_run, run
from fedunseen.deploy.offline import files
from fedunseen.deploy.secagg.enrolment import enrol
from processes import sets
from same import same
from small_runs import QUIET

NAMES = ("north", "south", "west")
FIRST = {
    "data.name": "folder",
    "data.part": True,
    "method.name": "gaussian",
    "method.calibration": True,
}
PLANNED = ("--adapt", "run")
ALL = ("--min-samples", "1")  # pools here are small


@pytest.fixture(scope="module")
def place(adapting):
    """The three parties, and their credentials."""
    enrol(adapting / "kits", NAMES)
    return adapting


@pytest.fixture
def adaptable(place, offline, tmp_path, monkeypatch):
    """A new folder as the working directory, with the parties' folders; return what merges a run to
    adapt in it.
    """
    monkeypatch.chdir(tmp_path)
    for name in ("data", "kits"):
        Path(name).symlink_to(place / name)

    def merged(more=()):
        settings = {
            **FIRST,
            **QUIET,
            "data.root": str(place / "data/coordinator"),
            "data.unlabelled": True,
        }
        said = offline.plan("first", NAMES, *more, of=(place / "mine.toml", *sets(settings))).err
        assert "unlabelled samples follow" in said
        offline.round("first", more=(*more, *ALL))

    return merged


@pytest.mark.parametrize(
    "way", [(), pytest.param(("--plain",), marks=pytest.mark.slow)], ids=["masked", "plain"]
)
def test_rounds_by_file_end_with_the_bits_of_one_process(way, adaptable, offline, place, command):
    adaptable(way)
    assert ("warning" in offline.plan("one", NAMES, *way).err) == bool(way)
    for plan, following in (("one", "two"), ("two", "three"), ("three", "four")):
        offline.round(plan, f"{following}.fedunseen", more=(*way, *ALL))
    assert "round 4 of 4" in command("offline", "show", "four.fedunseen").out
    offline.round("four", "adapted", more=(*way, *ALL))
    done, alone = load_run("adapted"), load_run(place / "alone")
    assert same(done, alone)
    for name in ("sums_sha256", "zsl", "gzsl_harmonic", "calibration_factor"):
        assert done.result[name] == alone.result[name]
    alike = ("samples", "classes", "refused", "rounds", "before")
    assert {k: done.result["adapted"][k] for k in alike} == {
        k: alone.result["adapted"][k] for k in alike
    }
    history = json.loads(command("ledger", "fedunseen-north", "--json").out)["releases"]
    assert [line.get("round") for line in history if "unlabelled" in line] == [0, 1, 2, 3]


@pytest.fixture
def one_round(adaptable, offline):
    adaptable()
    offline.plan("one")
    offline.round("one", "two.fedunseen")


@pytest.mark.slow
@pytest.mark.usefixtures("one_round")
def test_a_file_of_another_round_is_refused_and_an_answer_is_given_once(
    offline, place, refused, monkeypatch
):
    assert "give --credentials" in offline.merge(plan="one", out="x", call=refused, kits=None)
    first = Path("north-one.fedunseen").read_bytes()
    said = offline.merge("north-one.fedunseen", plan="two", out="x", call=refused)
    assert "round 1 of the plan, and this is round 2" in said
    with monkeypatch.context() as patch:  # its samples are others than in the first round
        patch.setattr(
            "fedunseen.deploy.client_data.raw_samples", lambda *settings: iter([b"another sample"])
        )
        assert "changed since the round before" in offline.act(
            "answer", "north", "two", call=refused
        )
    two = files.read(Path("two.fedunseen"))
    fields = {key: two[key] for key in ("plan", "k", "masked", "elements", "hello", "withdrawals")}
    key = bytes.fromhex(json.loads((place / "kits/coordinator/secagg.key").read_text())["ed25519"])
    turned_names = [*NAMES][::-1]
    hello = {**two["hello"], "names": turned_names}
    turned = files.signed(
        "plan", {**fields, "parties": turned_names, "hello": hello}, two.tensors, two.enrolment, key
    )
    Path("turned.fedunseen").write_bytes(turned)
    assert "asks other parties than in the round before" in offline.act(
        "answer", "north", "turned", call=refused
    )
    offline.act("answer", "north", "two")
    for plan in ("one", "two"):  # the same bytes, whenever it is asked again
        offline.act("answer", "north", plan, f"again-{plan}")
        assert (
            Path(f"again-{plan}.fedunseen").read_bytes()
            == Path(f"north-{plan}.fedunseen").read_bytes()
        )
    assert Path("north-one.fedunseen").read_bytes() == first
    assert "no answer of south, west" in offline.merge(
        plan="two", out="x", who=NAMES[:1], call=refused
    )
    twice = ("north-two.fedunseen", "again-two.fedunseen")
    assert "are both of north" in offline.merge(*twice, plan="two", out="x", call=refused)
    for name in ("south", "west"):
        offline.act("answer", name, "two")
    Path("west-two.fedunseen").write_bytes(Path("west-two.fedunseen").read_bytes()[:-9])
    assert "or was changed" in offline.merge(plan="two", out="x", call=refused)
    offline.act("answer", "west", "two", "repeated")
    # A second plan over the same samples needs consent, and later rounds have the data of the
    # first.
    offline.plan("other")
    assert "released under another plan" in offline.act("answer", "north", "other", call=refused)
    firsts = [f"{name}-one.fedunseen" for name in NAMES]
    assert "belongs to another plan" in offline.merge(*firsts, plan="other", out="x", call=refused)
    assert "cannot withdraw" in offline.act("withdraw", "north", "one", "gone", call=refused)
    kept = json.loads(Path("two.coordinator.json").read_text())
    kept["rounds"][0]["sums"]["count"] = [
        count + 1 for count in kept["rounds"][0]["sums"]["count"]
    ]  # unseen ones too
    Path("two.coordinator.json").write_text(json.dumps(kept))
    mixed = ("north-two.fedunseen", "south-two.fedunseen", "repeated.fedunseen")
    assert "data are not those of" in offline.merge(*mixed, plan="two", out="x", call=refused)
    unwritten = ("x", "x.coordinator.json", "gone.fedunseen", "north-other.fedunseen")
    assert not any(Path(name).exists() for name in unwritten)


@pytest.mark.slow
@pytest.mark.usefixtures("one_round")
def test_what_cannot_adapt_by_file_is_refused(offline, refused, tmp_path):
    settings = {
        "method.name": "eszsl",
        **QUIET,
        "data.train_per_class": 6,
        "data.test_per_class": 3,
    }
    run(Experiment.load("digit-pairs-gaussian", settings), tmp_path / "eszsl")
    assert "keeps no class means" in offline.plan("p", of=("--adapt", "eszsl"), call=refused)
    offline.plan("fresh", NAMES, "--plain")
    assert "asks for sums in clear" in offline.act("answer", "north", "fresh", call=refused)
    Path("fedunseen-south/ledger/ledger.json").unlink()
    Path("fedunseen-south/releases.jsonl").unlink()
    for path in Path("fedunseen-south/ledger").glob("released-*"):
        path.unlink()
    assert "answers round 1 next" in offline.act("answer", "south", "two", call=refused)
    assert not Path("p.fedunseen").exists()
