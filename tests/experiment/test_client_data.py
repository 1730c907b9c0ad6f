"""A party of a deployment, in this process: its data and state stay with it, and the result is the
in-process one.
"""

import re
import shutil
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from safetensors import SafetensorError

import small_runs
from fedunseen import ClassSpace, Experiment, __version__, load_run, run
from fedunseen.core.errors import QuorumError, RefusedError, RunDirectoryError
from fedunseen.deploy.client_data import PartyData, simulated
from fedunseen.deploy.deployed import deployed
from fedunseen.deploy.remote.party import Party
from fedunseen.deploy.remote.refusals import DATA, code_of
from fedunseen.deploy.remote.wire import PROTOCOL, pack, unpack
from fedunseen.deploy.site import Owner, Site
from fedunseen.experiment.deal import deal
from fedunseen.pages.report import write_report
from known_names import DIGITS_MAML
from links import answered, elsewhere, session
from refusals import message_of
from same import same
from small_runs import KilledError, kill

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_coordinator")]

NAMES = ("north", "south", "west")
DEPLOYED = {"engine.name": "nvflare", "engine.mode": "deployment", "engine.patience": 0.2}


def test_unseen_classes_samples_are_named_and_folders_with_none_to_train_on_refused(
    make_folder, folders, tmp_path
):
    def seen_alone(rows, arrays):
        arrays.update({name: values[arrays["labels"] < 8] for name, values in arrays.items()})

    said, table = [], tmp_path / "all" / "classes.csv"
    PartyData(make_folder(tmp_path / "seen", seen_alone)).tell_left_out(said.append)
    PartyData(make_folder(tmp_path / "all")).tell_left_out(said.append)
    assert said == [
        f"note: 16 samples are left out, of i, j, k, l: {table} marks these classes as unseen"
    ]
    assert "nowhere is missing: fix --data" in message_of(PartyData, tmp_path / "nowhere")
    assert "holds no sample to train on" in message_of(PartyData, folders / "coordinator")


class Inline:
    """Calls the parties; keeps what they were asked and answered. A message that is ``lost`` does
    not arrive.
    """

    def __init__(self, parties, lost=lambda name, header: False):
        self.there, self.lost, self.heard, self.messages = parties, lost, [], defaultdict(list)

    def present(self):
        return {name: str(id(party)) for name, party in self.there.items()}

    def ask(self, name, message):
        self.messages[name].append(message)
        answer = None if self.lost(name, unpack(message)[0]) else self.there[name].answer(message)
        self.heard.append((name, answer))
        return answered(answer)


def experiment(**more):
    return small_runs.experiment(strategy__rounds=3).with_overrides(
        {k.replace("__", "."): v for k, v in more.items()}
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    out = tmp_path_factory.mktemp("folders") / "dealt"
    deal(experiment(), out, NAMES)
    return out


def joined(folder, state, home=None):
    return Party(PartyData(folder, home=home).prepare, Site(state, Owner(folder)))


def members(folders, tmp_path, names=NAMES, take_home=False):
    """Return parties: name -> a party, whose model goes to ``homes``, if it takes it home."""
    homes = {name: tmp_path / "homes" / name if take_home else None for name in names}
    return {
        name: joined(folders / name, tmp_path / "state" / name, home)
        for name, home in homes.items()
    }


def own_data(folder):
    """The settings of a coordinator whose own samples are in this folder."""
    return {"data.name": "folder", "data.root": str(folder), "data.part": True}


def hosted(chosen, link, out, resume=False, names=NAMES):
    return run(
        chosen.with_overrides(DEPLOYED),
        out,
        resume,
        meeting=lambda: nullcontext(session(link, names)),
    )


def as_in_process(chosen, tmp_path):
    """Run an experiment in one process; check that the deployment's model has the same bits."""
    here = run(chosen.with_overrides({"engine.mode": "one-at-a-time"}), tmp_path / "here")
    assert same(tmp_path / "run", here)
    return here


CLSWGAN = {"name": "clswgan", "hidden": 32, "synthetic": 10, "head_epochs": 1, "critic_steps": 1}
SETTINGS = [
    {},
    {"strategy__name": "scaffold"},
    {"strategy__name": "moon"},
    {"strategy__name": "fedgloss"},
    {
        **{f"method__{key}": value for key, value in CLSWGAN.items()},
        "strategy__shared": ["generator.*"],
    },
    {"data__features": ["centre", "l2"]},
    {"defence__name": "median"},
    {"compression__name": "8-bit"},
    {"compression__name": "low-rank"},
]


@pytest.mark.parametrize(
    "settings", SETTINGS, ids=lambda s: "-".join(map(str, s.values())) or "fedavg"
)
def test_the_same_bits_as_in_process_also_after_a_kill(settings, folders, tmp_path):
    """Killed when one of three has done round 2 and the others have not, and resumed with the same
    parties.
    """
    chosen = experiment(**settings)
    parties = members(folders, tmp_path)
    link = Inline(
        parties, lambda name, header: (name, header.get("round")) == ("south", 1) and kill()
    )
    with pytest.raises(KilledError):
        hosted(chosen, link, tmp_path / "run")
    parties["west"] = joined(folders / "west", tmp_path / "state" / "west")  # killed too
    hosted(chosen, Inline(parties), tmp_path / "run", resume=True)
    as_in_process(chosen, tmp_path)
    assert all(party.done.is_set() and party.error is None for party in parties.values())


def test_a_message_that_comes_again_is_answered_from_memory(folders, tmp_path):
    link = Inline(members(folders, tmp_path))
    hosted(experiment(strategy__rounds=2), link, tmp_path / "run")
    party, lines = joined(folders / "north", tmp_path / "state" / "north"), []
    party.say = lines.append
    hello, message = link.messages["north"][:2]
    assert "not been greeted" in unpack(party.answer(message))[0]["text"]
    party.answer(hello)
    assert party.answer(message) == party.answer(message)
    assert sum(line.startswith("round 1:") for line in lines) == 1


@pytest.fixture(scope="module")
def chosen_rounds(folders, tmp_path_factory):
    """A deployment that chooses its rounds: the experiment, the run, and what the parties
    answered.
    """
    more = {
        "evaluation__selection": "validation",
        "strategy__rounds": 30,
        "strategy__stop_after": 2,
    }
    chosen, place = (
        experiment(**more, method__lr=0.2, method__kl=0.0),
        tmp_path_factory.mktemp("chosen"),
    )
    link = Inline(members(folders, place))
    return (
        chosen,
        hosted(chosen, link, place / "whole"),
        [unpack(answer)[0] for _, answer in link.heard],
    )


@pytest.mark.parametrize("stage", ["selection", "training"])
def test_rounds_are_chosen_and_training_stops_without_validation_classes(
    stage, chosen_rounds, folders, tmp_path
):
    """The coordinator has samples of validation classes; it is killed and continues, and nothing
    shows.
    """
    chosen, whole, heard = chosen_rounds
    parties, asked = members(folders, tmp_path), []

    def disturb(name, header):
        asked.append(header["kind"])
        stages = asked.count("hello") // len(NAMES)  # each begins with a greeting
        if (
            header.get("round") == 1
            and name == "west"
            and stages == (1 if stage == "selection" else 2)
        ):
            kill()

    with pytest.raises(KilledError):
        hosted(chosen, Inline(parties, disturb), tmp_path / "killed")
    resumed = hosted(chosen, Inline(parties), tmp_path / "killed", resume=True)
    for name in ("rounds", "stopped", "chosen_on_validation", "gzsl_harmonic"):
        assert resumed.result[name] == whole.result[name]
    assert same(resumed, whole)
    assert (
        whole.result["rounds"]
        == whole.result["selected_round"]
        == whole.result["stopped"]["round"] - 2
    )
    classes = [
        one["classes"] for one in heard if "samples" in one and "client" not in one
    ]  # answers to greetings
    assert sum(classes[: len(NAMES)]) == len(whole.space.train)
    assert sum(classes[len(NAMES) :]) == len(whole.space.seen)


def test_choosing_needs_samples_of_the_coordinator_s_validation_classes_and_of_parties_other_classes(
    folders, tmp_path
):
    settings = {
        "evaluation.selection": "validation",
        "strategy.stop_after": 2,
        **own_data(folders / "coordinator"),
    }
    sentence = message_of(
        hosted, experiment().with_overrides(settings), Inline({}), tmp_path / "run"
    )
    assert "folder/coordinator has no sample of its validation classes to choose on:" in sentence
    data, chosen = PartyData(folders / "north"), experiment()
    cases = [
        (wrong, "names validation classes that are not seen classes")
        for wrong in ([-1], ["a"], [True], 3, None)
    ]
    held = np.unique(data.benchmark.labels).tolist()
    cases.append((held, ": all samples to train on are of the coordinator's validation classes:"))
    for classes, sentence in cases:
        assert sentence in message_of(
            data._without, data.benchmark, classes, chosen, error=RefusedError
        )


def test_a_full_disk_at_either_side_loses_nothing(folders, tmp_path, monkeypatch):
    """A party cannot keep its client's state for a while; then the coordinator cannot write a
    checkpoint.
    """
    save, full = safetensors.torch.save_file, {"after-000001": 2, "checkpoints/.000002": 1}

    def crowded(tensors, path, metadata):
        for part in full:
            if (
                part in str(path)
                and "west" not in str(path)
                and "south" not in str(path)
                and full[part]
            ):
                full[part] -= 1
                Path(path).write_bytes(b"half a file")
                raise SafetensorError(
                    "Error while serializing: I/O error: No space left on device (os error 28)"
                )
        save(tensors, path, metadata)

    monkeypatch.setattr(safetensors.torch, "save_file", crowded)
    chosen = experiment(strategy__name="scaffold", method__kl=0.0)
    link = Inline(members(folders, tmp_path))
    sentence = message_of(hosted, chosen, link, tmp_path / "run", error=RunDirectoryError)
    start = rf"{tmp_path}/run cannot be written \(.*No space left on device.*"
    assert re.fullmatch(
        f"{start}choose another --out, or fix that and call the command again, with --resume if it has that",
        sentence,
    )
    assert set(full.values()) == {0}
    heard = [unpack(answer)[0].get("text", "") for name, answer in link.heard if name == "north"]
    assert sum("No space left on device" in one for one in heard) == 2  # told, and asked again
    assert not any(str(tmp_path) in one for one in heard)
    assert not list((tmp_path / "state").rglob(".*.tmp"))
    hosted(chosen, Inline(members(folders, tmp_path)), tmp_path / "run", resume=True)
    as_in_process(chosen, tmp_path)


def test_a_party_that_lost_its_state_says_so_and_nothing_but_updates_counts_and_losses_leaves_it(
    folders, tmp_path
):
    parties, said = members(folders, tmp_path), []

    def lose(name, header):
        if header.get("round") == 1 and name == "north":
            for path in (tmp_path / "state" / "north").rglob("after-*"):
                path.unlink()

    parties["north"].say, link = said.append, Inline(parties, lose)
    hosted(experiment(strategy__name="scaffold"), link, tmp_path / "run")
    assert any("starts again" in line for line in said)
    held = sorted(path.name for path in (tmp_path / "state" / "south").rglob("after-*"))
    assert held == [f"after-{round:06d}.safetensors" for round in range(3)]
    keys = {"client", "round", "classes", "samples", "terms", "step_lengths", "notes", "seconds"}
    for name, answer in link.heard:
        header, tensors = unpack(answer)
        assert header.keys() - {"forgot"} in (keys, {"classes", "samples"}, set()), name
        assert ("forgot" in header) == (name == "north" and header.get("round") == 1)
        assert {key.split("/")[0] for key in tensors} <= {"update"}


NOISE = {"name": "client-level", "clip": 1.0, "noise": 1.0, "noise_from": "system"}


def refused(folders, tmp_path, change):
    """Return the error of a party whose greeting is changed; it answers with it too."""
    party = joined(folders / "north", tmp_path / "state")
    link = Inline({"north": party}, lost=lambda name, header: True)
    message_of(hosted, experiment(), link, tmp_path / "run", error=QuorumError)
    header, tensors = unpack(link.messages["north"][0])
    change(header)
    answer, _ = unpack(party.answer(pack(header, tensors)))
    assert party.done.is_set()
    code = code_of(party.error)
    text = str(party.error).replace(str(folders / "north"), "DATA")
    assert answer == {"error": code, **({} if code == DATA else {"text": text})}
    return str(party.error)


def named(section, key, value):
    """A file that the coordinator names, and what the party says."""
    sentence = f"the coordinator names the file '{value}' for {section}.{key}, and a party opens its own files"
    return (
        lambda header: header["experiment"].setdefault(section, {}).update({key: value}),
        sentence,
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda header: header.update(version="9.9"),
            "the coordinator fedunseen 9.9 (messages 2): install the same version on",
        ),
        (
            lambda header: header.update(shape=[64]),
            "has the shape (128,), but the coordinator's model takes (64,)",
        ),
        (
            lambda header: header["experiment"]["method"].update(name="fedzls"),
            "unknown method 'fedzls'",
        ),
        *(
            (lambda header, name=name: header.update(run=name), "names no run")
            for name in ("../x", "/x", "", "012eF")
        ),
        named("encoder", "model", "/etc/passwd"),
        named("encoder", "weights", "a/b/c"),
        named("encoder", "weights", "weights.safetensors"),
        named("method", "words", "vectors.txt"),
        named("data", "vectors", "glove"),
        named("method", "text", "/etc"),
        named("data", "text_encoder", "vectors:/etc/passwd"),
        named("method", "words", "/etc/passwd"),
        named("encoder", "weights", "~root/model"),
        (
            lambda header: header["experiment"]["evaluation"].update(
                choose={"method.words": ["one-hot", "x.npy"]}
            ),
            "file 'x.npy' for method.words",
        ),
        (
            lambda header: header["experiment"].update(attack={"name": "sign-flip"}),
            "the coordinator sends [attack]",
        ),
        (
            lambda header: header.update(experiment=list(header["experiment"].items())),
            "experiment cannot be computed: it is not a table",
        ),
        (
            lambda header: header["experiment"].update(privacy=NOISE),
            "has to know who holds how many classes",
        ),
    ],
)
def test_a_greeting_that_does_not_fit_is_refused(change, sentence, folders, tmp_path):
    assert sentence in refused(folders, tmp_path, change)


def test_another_class_space_is_refused(folders, tmp_path):
    other = Path(shutil.copytree(folders / "north", tmp_path / "other" / "north"))
    space, arrays = ClassSpace.load(other / "classes.csv"), dict(np.load(other / "features.npz"))
    replace(space, names=(*space.names[:2], "owl", *space.names[3:])).save(other / "classes.csv")
    arrays["labels"] = np.where(arrays["labels"] == space.names[2], "owl", arrays["labels"])
    np.savez(other / "features.npz", **arrays)
    error = refused(other.parent, tmp_path, lambda header: None)
    assert (
        "is not the coordinator's class space: they differ in the names of the classes: copy"
        in error
    )


def write_pictures(folder, name, pictures, table):
    """Write a class's pictures and the table of the classes."""
    (folder / name).mkdir()
    for i, pixels in enumerate(pictures):
        Image.fromarray(pixels).save(folder / name / f"{i}.png")
    (folder / "classes.csv").write_text(table, "utf-8")


def test_a_party_reads_its_pictures_as_the_coordinator_does(tmp_path):
    """Cut out of a larger picture, they would have other features than the coordinator tests
    with.
    """
    pixels = np.random.default_rng(0).integers(256, size=(12, 12, 3)).astype(np.uint8)
    write_pictures(tmp_path, "red", [pixels] * 2, "name,split,r\nred,seen,1\ngreen,unseen,0.5\n")
    result = PartyData(tmp_path, settings={"size": 12, "resize": 12}).benchmark
    np.testing.assert_array_equal(result.images()[0], pixels.transpose(2, 0, 1))


def as_texts(folders, out, apart):
    """Copy parties' folders as if a text encoder had described the classes, each time ``apart`` a
    little otherwise.
    """
    shutil.copytree(folders, out)
    for k, table in enumerate(sorted(out.glob("*/classes.csv"))):
        space = ClassSpace.load(table)
        texts = (
            space.semantics + np.random.default_rng(k).normal(size=space.semantics.shape) * apart
        )
        columns = tuple(f"text {i}" for i in range(space.attributes))
        replace(space, semantics=texts, attribute_names=columns, attribute_groups={}).save(table)
    return out


@pytest.mark.parametrize("method", ["gaussian", "fedzsl"])
def test_text_encoders_of_processors_that_round_otherwise_give_the_coordinator_s_bits(
    method, folders, tmp_path
):
    """Sums of class spaces of other bits would be refused, and updates would not be those of one
    process.
    """
    own = as_texts(folders, tmp_path / "rounded", 1e-6)
    chosen = experiment(strategy__rounds=1, method__name=method).with_overrides(
        own_data(own / "coordinator")
    )
    rounded = hosted(chosen, Inline(members(own, tmp_path / "a")), tmp_path / "a" / "run")
    for party in NAMES:
        shutil.copy(own / "coordinator" / "classes.csv", own / party)
    assert same(
        rounded, hosted(chosen, Inline(members(own, tmp_path / "b")), tmp_path / "b" / "run")
    )


def test_other_texts_are_refused(folders, tmp_path):
    other = as_texts(folders, tmp_path / "other", 1e-2)
    north, result = PartyData(other / "north"), PartyData(other / "south").benchmark.space
    assert north.benchmark.space.with_bits_of(result.semantics) is north.benchmark.space
    sentence = message_of(north._compare, north.benchmark, result.hashes(), error=RefusedError)
    assert "differ in the attributes of the classes: copy the coordinator's" in sentence


@pytest.mark.parametrize(
    "noise", [b"", b"\0" * 50, pack({"kind": "wipe"}), pack({"kind": "round"}), pack({})]
)
def test_noise_is_answered_and_does_no_harm(noise, folders, tmp_path):
    party = joined(folders / "north", tmp_path / "state")
    assert unpack(party.answer(noise))[0]["error"] == "refused-message"
    assert not party.done.is_set()


def test_few_shot_parties_train_on_no_validation_class(tmp_path):
    """Folders of whole classes: what a coordinator chooses to validate on, parties leave out as the
    simulation does.
    """
    small = {
        "partition.clients": 2,
        "method.episodes": 8,
        "strategy.rounds": 2,
        "evaluation.selection": "last",
    }
    small |= {"evaluation.episodes": 6, "method.inner_steps": 2, "method.test_steps": 3}
    few = Experiment.load(DIGITS_MAML, {**small, "partition.kind": "iid"})
    deal(few, tmp_path / "data", ("north", "south"))
    done = hosted(
        few,
        Inline(members(tmp_path / "data", tmp_path, NAMES[:2])),
        tmp_path / "run",
        names=NAMES[:2],
    )
    assert done.result["few_shot"] == as_in_process(few, tmp_path).result["few_shot"]


@pytest.mark.parametrize("quorum", [1, 0.5])
def test_parties_that_are_now_there_and_now_not(quorum, folders, tmp_path):
    """A client's state is that of its last merged round, whatever it has computed since: as in a
    simulation.
    """
    lost = {("north", 1), ("south", 2), ("west", 2), ("south", 3)}
    settings = {"strategy__name": "scaffold", "strategy__rounds": 6, "strategy__fraction": 0.7}
    chosen = experiment(
        **settings, engine__name="nvflare", engine__quorum=quorum, engine__patience=0.2
    )

    class Lossy(Inline):
        def ask(self, name, message):
            answer = self.there[name].answer(message)
            key = (NAMES[int(name)] if name.isdigit() else name, unpack(message)[0].get("round"))
            return answered(None if key in lost else answer)

    near = Lossy({str(k): SimpleNamespace(answer=partial(simulated(), str(k))) for k in range(3)})
    apart = hosted(chosen, Lossy(members(folders, tmp_path)), tmp_path / "apart")
    assert same(apart, elsewhere(chosen, tmp_path / "near", near))


@pytest.mark.parametrize(
    "settings", [{}, {"method__name": "gaussian", "strategy__rounds": 1}, *SETTINGS[4:6]], ids=str
)
def test_every_party_takes_the_model_home(settings, folders, tmp_path):
    """A party's run directory answers as the coordinator's does, for new inputs and for a class
    that is added.
    """
    parties = members(folders, tmp_path, take_home=True)
    done = hosted(experiment(**settings), Inline(parties), tmp_path / "run")
    samples = np.load(folders / "coordinator" / "features.npz")["features"][::40]
    new = {"55 upside down": done.space.semantics[55][::-1]}
    for name, party in parties.items():
        home = load_run(party.home)
        assert home.path == tmp_path / "homes" / name
        assert home.predict(samples, new) == done.predict(samples, new)
        assert home.headline() == done.headline()
        assert str(tmp_path / "run") not in "".join(
            path.read_text("utf-8") for path in home.path.glob("*.json")
        )
        assert "is the model that a party took home" in message_of(
            getattr, home, "metrics", error=RunDirectoryError
        )


def test_a_setting_keeps_the_model_here_and_a_party_that_comes_when_all_is_over_takes_it_home(
    folders, tmp_path
):
    chosen, parties = experiment(strategy__rounds=1), members(folders, tmp_path, take_home=True)
    kept = chosen.with_overrides({"engine.name": "nvflare", "engine.deliver": False})
    hosted(kept, Inline(parties), tmp_path / "kept")
    assert [party.home for party in parties.values()] == [None] * 3
    assert not (tmp_path / "homes").exists()
    hosted(chosen, Inline(members(folders, tmp_path)), tmp_path / "run")
    parties = members(folders, tmp_path, take_home=True)
    done = hosted(chosen, Inline(parties), tmp_path / "run", resume=True)
    assert all(same(party.home, done) for party in parties.values())
    home = load_run(parties["north"].home)
    assert (
        home.learn({"00 again": home.space.semantics[0]}, out=tmp_path / "more").space.names[-1]
        == "00 again"
    )
    assert load_run(tmp_path / "more").result["warnings"] == home.result["warnings"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda result, model: (result, {**model, min(model): torch.zeros(3)}),
            "of its model has the shape (3,)",
        ),
        (lambda result, model: (result, dict(list(model.items())[1:])), "its model lacks"),
        (
            lambda result, model: (result, {k: v * torch.nan for k, v in model.items()}),
            "its model is not finite",
        ),
        (
            lambda result, model: ({**result, "zsl": "\x1b[2J"}, model),
            "its numbers 'zsl' is not a finite number",
        ),
        (
            lambda result, model: ({**result, "../zsl": 1}, model),
            "its numbers have an impossible name, '../zsl'",
        ),
        (
            lambda result, model: ({**result, "selection": "me"}, model),
            "its numbers were chosen 'me'",
        ),
        (lambda result, model: ("fine", model), "its numbers are not a table"),
    ],
)
def test_a_farewell_that_is_no_model_is_refused_and_nothing_is_written(
    change, message, folders, tmp_path
):
    parties = members(folders, tmp_path, take_home=True)
    link = Inline(parties, lost=lambda name, header: header["kind"] == "stop")
    hosted(experiment(strategy__rounds=1), link, tmp_path / "run")
    party, (header, model) = parties["north"], unpack(link.messages["north"][-1])
    result, model = change(header["result"], model)
    answer, _ = unpack(party.answer(pack({**header, "result": result}, model)))
    assert answer["error"] == "refused-message"
    assert message in answer["text"]
    assert str(party.error) == f"the run is over, but its model is not here: {answer['text']}"
    assert party.done.is_set()
    assert not (tmp_path / "homes").exists()


def test_names_alone_are_described_before_there_is_a_coordinator(tmp_path, monkeypatch):
    """No one has said yet by what: MiniLM, unless the party says otherwise."""
    embed = mock.Mock(side_effect=lambda texts, encoder: np.eye(len(texts), dtype=np.float32))
    monkeypatch.setattr("fedunseen.encoders.text.embed_texts", embed)
    pictures = [np.full((8, 8, 3), 60 * number, np.uint8) for number in range(4)]
    write_pictures(tmp_path, "cat", pictures, "name,split\ncat,seen\ndog,seen\nfox,unseen\n")
    assert len(PartyData(tmp_path).benchmark.train) == 4
    PartyData(tmp_path, {"data.text_encoder": "another"})
    assert [call.args[1] for call in embed.call_args_list] == ["minilm", "another"]


@pytest.mark.parametrize("form", ["gaussian", "ridge"])
def test_a_deployment_says_how_it_is_calibrated_and_tests_all_of_the_coordinator_s_samples(
    form, folders, tmp_path
):
    """Seen classes' samples of the coordinator's own part are marked 'train', as folders of
    pictures are.
    """
    place = Path(shutil.copytree(folders / "coordinator", tmp_path / "own"))
    space, arrays = ClassSpace.load(place / "classes.csv"), dict(np.load(place / "features.npz"))
    seen = np.isin(arrays["labels"], np.array(space.names)[space.seen])
    arrays["split"] = np.where(seen, "train", "test")
    np.savez(place / "features.npz", **arrays)
    asked = experiment(method__name=form, strategy__rounds=1, evaluation__selection="validation")
    asked = asked.with_overrides(own_data(place))
    for steps, left in (([], 0), (["centre"], seen.sum() / 5)):
        default = asked.with_overrides({"data.features": steps})
        done = hosted(
            deployed(default, {}),
            Inline(members(folders, tmp_path / form)),
            tmp_path / f"run{len(steps)}",
        )
        assert done.result["selection"] == "last"
        assert ("left_out_offset" in done.result) == (form == "gaussian")
        said = [*done.result["notes"], ""]
        assert ("No offset favors" in said[0]) == (form == "ridge")
        assert "evaluation.selection=validation" in said[0]
        assert ("samples are not tested" in said[1]) == (left > 0)
        labels = safetensors.torch.load_file(done.path / "evaluation.safetensors")["labels"]
        assert len(arrays["labels"]) - len(labels) == pytest.approx(left, abs=len(space.seen) / 2)
        assert done.result["notes"][0].split(";")[0] in write_report(done).read_text()
    assert deployed(asked, {"evaluation.selection": "validation"}) is asked


def test_a_greeting_with_other_numbers_is_prepared_for_anew(tmp_path):
    prepare = mock.Mock(
        return_value=SimpleNamespace(
            samples=3, classes=2, engine=None, brought={}, held=(), left_out="", raw=list,
            present=frozenset,
        )
    )  # fmt: skip
    party = Party(prepare, Site(tmp_path))
    header = {"kind": "hello", "protocol": PROTOCOL, "version": __version__, "run": "0" * 16}
    header["experiment"] = {}  # whose cost the site computes
    for mean in (1.0, 1.0, 2.0):
        assert unpack(party.answer(pack(header, {"mean": torch.tensor([mean])})))[0]["samples"] == 3
    assert [call.args[1]["mean"].tolist() for call in prepare.call_args_list] == [[1.0], [2.0]]
