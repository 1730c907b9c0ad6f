"""A site of a Flower or NVFlare federation has the checks of ``fedunseen join``: one party answers
in all of them.
"""

import pytest

from fedunseen.core.errors import ExperimentError, FedUnseenError, RefusedError
from fedunseen.deploy import certs
from fedunseen.deploy.releases import Releases
from fedunseen.deploy.remote.wire import fields, pack
from fedunseen.deploy.secagg.enrolment import Enrolment
from processes import command
from small_federation import NAMES, experiment, greeting, write_all

pytest.importorskip("cryptography", reason="pip install 'fedunseen[masked]'")

SAMPLE_LEVEL = {
    "privacy__name": "sample-level",
    "privacy__clip": 1.0,
    "privacy__epsilon": 4.0,
    "privacy__noise_from": "system",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Folders of data, and credentials."""
    folder = tmp_path_factory.mktemp("sites")
    command("certs", "--parties", ",".join(NAMES), "--out", folder / "kits")
    return write_all(folder / "data"), folder / "kits"


def by_flower(config, state, monkeypatch):
    """Return what a node's process answers with."""
    flower = pytest.importorskip(
        "fedunseen.deploy.flower_app", reason="`make test-flower` runs this"
    )
    found = []
    monkeypatch.setattr(
        flower, "serve_party", lambda state, answer, done, parent: found.append(answer)
    )
    flower._serve({"name": "north", "state": str(state), "parent": 0, **config})
    return found[0]


def by_nvflare(config, state, monkeypatch):
    """Return what a site's process answers with."""
    nvflare = pytest.importorskip("fedunseen.deploy.nvflare_job")
    settings = {"state": str(state), **config}
    return nvflare.Party().answering(nvflare.Place("north", state.parent, state, settings))


WAYS = pytest.mark.parametrize("way", [by_flower, by_nvflare])


def config_of(place, state, **more):
    data, kits = place
    return {
        "data": str(data / "north"), "credentials": str(kits / "north"), "out": str(state / "model"), **more,
    }  # fmt: skip


def error_of(answer):
    """Return the code of a refusal, or None."""
    return fields(answer)[0].get("error")


@WAYS
def test_a_site_keeps_its_history_and_its_limit(way, place, tmp_path, monkeypatch):
    greeted = pack(*greeting(experiment(place[0], **SAMPLE_LEVEL), tmp_path / "host"))
    state = tmp_path / "state"

    def asked(**more):
        return error_of(way(config_of(place, state, **more), state, monkeypatch)(greeted))

    assert asked(epsilon_limit=3.0) == "refused-budget"
    assert asked(epsilon_limit=5.0) is None
    (line,) = Releases(state).lines
    assert line["kind"] == "hello"
    assert "samples" not in line  # under masks their number does not leave
    Releases(state).charge("another run", (3.0, 0.0))
    assert asked(epsilon_limit=5.0) == "refused-budget"
    assert asked() is None


@WAYS
def test_a_limit_refuses_what_nothing_bounds(way, place, tmp_path, monkeypatch):
    greeted = pack(*greeting(experiment(place[0]), tmp_path / "host"))
    answers = [
        way(config_of(place, state, **more), state, monkeypatch)(greeted)
        for state, more in (
            (tmp_path / "one", {"epsilon_limit": 100}),
            (tmp_path / "two", {}),
        )
    ]
    assert [error_of(answer) for answer in answers] == ["refused-budget", None]


@WAYS
@pytest.mark.parametrize(
    "wrong",
    [{"epsilon_limit": "3"}, {"epsilon_limit": -1.0}, {"epsilon_limit": 1.0, "delta_limit": 0.5}],
    ids=str,
)
def test_a_limit_that_is_none_is_refused_at_the_site(way, place, wrong, tmp_path, monkeypatch):
    with pytest.raises(FedUnseenError, match=r"delta|epsilon"):
        way(config_of(place, tmp_path / "state", **wrong), tmp_path / "state", monkeypatch)


@WAYS
@pytest.mark.parametrize(
    ("stray", "near"),
    [
        ({"epsilon-limit": 1.0}, "epsilon_limit"),
        ({"epsilon_limits": 1.0}, "epsilon_limit"),
        ({"delta-limit": 1e-6}, "delta_limit"),
        ({"min-samples": 50}, "min_samples"),
        ({"mask": True}, "masked"),
        ({"Masked": True}, "masked"),
        ({"consents": ""}, "consent"),
        ({"noise": 9.0}, None),
    ],
    ids=str,
)
def test_an_option_that_is_none_is_refused_by_name(way, place, stray, near, tmp_path, monkeypatch):
    with pytest.raises(ExperimentError) as caught:
        way(config_of(place, tmp_path / "state", **stray), tmp_path / "state", monkeypatch)
    assert caught.value.code == "site-option"
    (key,) = stray
    hint = f": did you mean {near!r}?" if near else " (known: "
    assert str(caught.value).startswith(f"unknown option of this site {key!r}{hint}")


@WAYS
@pytest.mark.parametrize("masked", ["false", "no", "", 0, None], ids=repr)
def test_masked_is_true_or_false(way, place, masked, tmp_path, monkeypatch):
    config = config_of(place, tmp_path / "state", masked=masked)
    with pytest.raises(ExperimentError, match="must be true or false"):
        way(config, tmp_path / "state", monkeypatch)


@WAYS
@pytest.mark.parametrize(
    ("consent", "said"),
    [
        ({"again": False, "dropouts": False}, "must be a list of words"),
        (True, "must be a list of words"),
        (["again", 1], "must be a list of words"),
        (["agian"], "did you mean 'again'"),
        ("again dropout", "did you mean 'dropouts'"),
        ("refusals", "give `fedunseen ledger STATE --consent refusals` once"),
        (["moments", "refusals"], "give `fedunseen ledger STATE --consent refusals` once"),
    ],
    ids=str,
)
def test_a_consent_that_is_none_is_refused_by_name(
    way, place, consent, said, tmp_path, monkeypatch
):
    """The attack: with refusals consented to in a configuration, each message that started a
    process began the count of eight again.
    """
    with pytest.raises(ExperimentError) as caught:
        way(config_of(place, tmp_path / "state", consent=consent), tmp_path / "state", monkeypatch)
    assert caught.value.code == "site-consent"
    assert said in str(caught.value)


@WAYS
@pytest.mark.parametrize(
    "consent", ["again,look  names", ["moments", "moved", "dropouts"], "", None]
)
def test_a_consent_is_a_list_of_words(way, place, consent, tmp_path, monkeypatch):
    config = config_of(place, tmp_path / "state", consent=consent)
    assert way(config, tmp_path / "state", monkeypatch)


def test_a_node_keeps_what_other_apps_of_flower_read(place, tmp_path, monkeypatch):
    config = config_of(place, tmp_path / "state", **{"partition-id": 0, "num-partitions": 3})
    assert by_flower(config, tmp_path / "state", monkeypatch)


def test_the_server_of_nvflare_refuses_it_too(tmp_path):
    nvflare = pytest.importorskip("fedunseen.deploy.nvflare_job")
    server = nvflare.Place("server", tmp_path, tmp_path, {"credential": "kits/server"})
    with pytest.raises(ExperimentError, match="did you mean 'credentials'"):
        nvflare.Coordinator("digit-pairs-gaussian").coordinate(server, ["north"])


@WAYS
@pytest.mark.parametrize("settings", [{"privacy.noise": 9.0}, {"run.threads": 1}], ids=str)
def test_a_site_sets_what_a_party_may_set(way, place, settings, tmp_path, monkeypatch):
    words = " ".join(f"{key}={value}" for key, value in settings.items())
    config = config_of(place, tmp_path / "state", set=words if way is by_flower else settings)
    if "run.threads" in settings:
        assert way(config, tmp_path / "state", monkeypatch)
        return
    with pytest.raises(FedUnseenError, match="a party can set only"):
        way(config, tmp_path / "state", monkeypatch)


@WAYS
@pytest.mark.parametrize("masked", [False, True])
def test_numbers_beyond_their_bounds_are_refused(way, place, masked, tmp_path, monkeypatch):
    header, tensors = greeting(experiment(place[0]), tmp_path / "host")
    header["experiment"]["privacy"]["clip"] = 1e20
    answer = way(
        config_of(place, tmp_path / "state", masked=masked), tmp_path / "state", monkeypatch
    )
    found, names = fields(answer(pack(header, tensors)))
    assert found["error"] == "refused-number"
    assert ("text" in found, names) == (not masked, ())


@WAYS
@pytest.mark.parametrize(
    "held", ["class 0,class 1,class 2", "class 0,class 1"], ids=["all", "less"]
)
def test_classes_that_a_site_must_not_send_are_refused(way, place, held, tmp_path, monkeypatch):
    data, _ = place
    classes = {"north": held.split(","), "south": ["class 3"], "west": ["class 6"]}
    kits = tmp_path / "kits"
    certs.make(kits, "127.0.0.1", NAMES, 2, classes=classes)
    header, tensors = greeting(experiment(data), tmp_path / "host")
    header["classes"] = Enrolment.load(kits / "north").classes_digest
    answer = way(config_of((data, kits), tmp_path / "state"), tmp_path / "state", monkeypatch)
    found = error_of(answer(pack(header, tensors)))
    assert found == (None if len(classes["north"]) == 3 else "refused-data")


def test_two_jobs_at_once_do_not_spend_one_budget_twice(tmp_path):
    """NVFlare starts a process for each job, and both may have read the history before either
    wrote.
    """
    one, two = Releases(tmp_path, 1.0), Releases(tmp_path, 1.0)
    one.charge("one", (0.8, 0.0))
    with pytest.raises(RefusedError) as caught:
        two.charge("two", (0.8, 0.0))
    assert caught.value.code == "history-in-use"
    assert Releases(tmp_path).spent()[0] == 0.8
    one.charge("more", (0.1, 0.0))
