"""A run that goes on with one party more, or without one that was shut out: real processes, and the
same bits as in one process that knew it from the start.
"""

import json
import shutil
from dataclasses import asdict, replace

import pytest

from fedunseen import Experiment, load_run, run
from fedunseen.core.errors import ExperimentError, RefusedError, RunDirectoryError
from fedunseen.deploy.cli.health import _process
from fedunseen.deploy.rollback import rollback
from fedunseen.deploy.rosters import FILE, Roster, continued, read, record, shut_out
from fedunseen.experiment.deal import deal
from fedunseen.federation.run_directory import RunDirectory
from processes import Deployment, sets
from same import same
from small_runs import experiment as small

NAMES = ("north", "south", "west", "east")
SETTINGS = {
    "data.train_per_class": 40,
    "data.test_per_class": 10,
    "evaluation.selection": "last",
    "evaluation.theory": False,
    "evaluation.embedding": False,
    "evaluation.clients": False,
}
FEDAVG = {**SETTINGS, "method.hidden": [8], "method.kl": 0.0, "strategy.rounds": 2}


def begun(machine, preset, settings, patience=60.0, **more):
    """Return a deployment of three, with data for a fourth party."""
    whole = Experiment.load(preset, {**settings, "partition.clients": 4})
    deal(whole, machine.folder / "data", list(NAMES))
    host = [preset, *sets({**settings, "engine.patience": patience})]
    return Deployment(machine, NAMES[:3], machine.folder / "data", *host, **more)


def here(folder, preset, settings):
    """Run the same in one process."""
    rest = {"partition.clients": 4, "engine.mode": "one-at-a-time"}
    return run(Experiment.load(preset, {**settings, **rest}), folder / "here")


def out_of(process, name="out"):
    return ["--out", f"runs/{process}-{name}", "--state", f"fedunseen-{process}"]


@pytest.mark.slow
def test_a_new_party_alone_sends_its_statistics_to_a_finished_run(machine, tmp_path):
    deployment = begun(machine, "digit-pairs-gaussian", SETTINGS)
    coordinator = deployment.host()
    deployment.end(coordinator, {name: deployment.join(name) for name in NAMES[:3]})
    first = load_run(tmp_path / "run").result["sums_sha256"]
    deployment.change("add", "east")
    coordinator = deployment.host("--resume")
    deployment.end(coordinator, {"east": deployment.join("east")})  # no one else is asked
    lived = load_run(tmp_path / "run")
    assert "From round 2 on the parties are: north, south, west, east" in machine.said("host.log")
    assert lived.result["sums_sha256"] != first
    assert [line["participants"] for line in lived.metrics] == [[0, 1, 2], [3]]
    assert [len(version.parties) for version in read(tmp_path / "run")] == [3, 4]
    # the same command again changes nothing
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    deployment.end(deployment.host("--resume"), {})
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before
    # and a run with all four from the start ends with the same sums
    (tmp_path / "run").rename(tmp_path / "lived")
    words = ["digit-pairs-gaussian", *sets(SETTINGS)]
    whole = Deployment(machine, NAMES, tmp_path / "data", *words, insecure=True)
    coordinator = whole.host()
    whole.end(coordinator, {name: whole.join(name) for name in NAMES})
    expected = load_run(tmp_path / "run").result["sums_sha256"]
    assert lived.result["sums_sha256"] == expected


@pytest.mark.slow
def test_training_goes_on_with_a_new_party_and_without_one_that_was_shut_out(machine, tmp_path):
    deployment = begun(machine, "digit-pairs", FEDAVG)
    coordinator = deployment.host()
    deployment.end(coordinator, {name: deployment.join(name) for name in NAMES[:3]})
    deployment.change("add", "east")
    deployment.change("revoke", "south")
    assert machine.ended(deployment.host("--resume")) == 2
    assert "none is left for new parties: give more" in machine.said("host.log")
    coordinator = deployment.host("--resume", "--set=strategy.rounds=4")
    names = ("north", "west", "east")
    more = {name: deployment.join(name) for name in names}
    deployment.end(coordinator, more)
    lived = load_run(tmp_path / "run")
    assert [line["participants"] for line in lived.metrics] == [[0, 1, 2]] * 2 + [[0, 2, 3]] * 2
    changes = {"strategy.rounds": 4, "partition.join": {"3": 2}, "partition.leave": {"1": 2}}
    assert same(lived, here(tmp_path, "digit-pairs", {**FEDAVG, **changes}))
    assert "lost what it remembered" not in machine.said("host.log")


@pytest.mark.slow
def test_a_run_that_waits_for_a_party_goes_on_once_it_is_revoked(machine, tmp_path):
    """Nothing is started again, the list says at once who left, and rounds can be added later."""
    deployment = begun(machine, "digit-pairs", FEDAVG, patience=9999.0)
    coordinator = deployment.host()
    joined = {name: deployment.join(name) for name in ("north", "west")}
    machine.until(lambda: machine.said("host.log").count(" has joined") == 2)
    deployment.change("revoke", "south")
    deployment.end(coordinator, joined)
    assert "south was revoked, and is not waited for any more" in machine.said("host.log")
    lived = load_run(tmp_path / "run")
    assert [line["participants"] for line in lived.metrics] == [[0, 2]] * 2
    assert lived.metrics[0]["dropped"] == {"1": "it was revoked"}
    versions = read(tmp_path / "run")
    assert [version.expected for version in versions] == [NAMES[:3], ("north", "west")]
    assert {version.parties for version in versions} == {NAMES[:3]}
    assert versions[1].serial == versions[0].serial + 1  # so that the list before is refused
    kept = {path: path.read_bytes() for path in (tmp_path / "run").glob("*.safetensors")}
    deployment.end(deployment.host("--resume"), {})
    assert kept == {path: path.read_bytes() for path in kept}
    assert read(tmp_path / "run")[-1].expected == ("north", "west")
    # the others can go on: as in one process that never had the third
    coordinator = deployment.host("--resume", "--set=strategy.rounds=4")
    deployment.end(coordinator, {name: deployment.join(name) for name in ("north", "west")})
    lived = load_run(tmp_path / "run")
    assert [line["participants"] for line in lived.metrics] == [[0, 2]] * 4
    changes = {"strategy.rounds": 4, "partition.without": [1, 3]}
    assert same(lived, here(tmp_path, "digit-pairs", {**FEDAVG, **changes}))


@pytest.mark.slow
def test_masked_sums_take_a_new_party_with_everyone_s_consent(machine, tmp_path):
    masked = {**FEDAVG, "privacy.aggregation": "masked", "strategy.weights": "uniform"}
    deployment = begun(machine, "digit-pairs", masked)
    coordinator = deployment.host()
    deployment.end(coordinator, {name: deployment.join(name) for name in NAMES[:3]})
    first = json.loads((tmp_path / "run" / "secagg" / "plan.json").read_text())["plan"]
    deployment.change("add", "east")
    more = "--set=strategy.rounds=4"
    assert machine.ended(deployment.host("--resume", more)) == 2
    assert "--set privacy.dropouts=allow" in machine.said("host.log")
    coordinator = deployment.host("--resume", more, "--set=privacy.dropouts=allow")
    deployment.more = ["--consent=dropouts", "--consent=again"]
    deployment.end(coordinator, {name: deployment.join(name) for name in NAMES})
    second = json.loads((tmp_path / "run" / "secagg" / "plan.json").read_text())["plan"]
    assert first["federation"] != second["federation"]  # each plan has its list
    lines = load_run(tmp_path / "run").metrics
    assert [len(line["participants"]) for line in lines] == [3, 3, 4, 4]


NOISE = {"privacy": {"name": "client-level", "epsilon": 4.0}}
MASKED = {"privacy": {"aggregation": "masked", "dropouts": "refuse"}}


@pytest.fixture
def finished(tmp_path):
    """A run of three clients and two rounds."""
    path = tmp_path / "run"
    run(small(partition__clients=3, strategy__rounds=2), path)
    record(path, Roster(0, NAMES[:3], NAMES[:3], 3))
    return path


def changed(path, **sections):
    """Change what a run's manifest says of its settings."""
    manifest = json.loads((path / "manifest.json").read_text())
    for section, values in sections.items():
        manifest["experiment"].setdefault(section, {}).update(values)
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("now", "sections", "code"),
    [
        (Roster(0, NAMES, NAMES, 2), {}, "roster-older"),
        (Roster(0, NAMES[1:], NAMES[1:], 3), {}, "roster-lacks"),
        (Roster(0, NAMES, NAMES, 4), {}, "roster-rounds"),
        (Roster(0, NAMES[:3], NAMES[:2], 4), {**NOISE, "strategy": {"rounds": 1}}, "roster-noise"),
        (Roster(0, NAMES, NAMES, 4), {"evaluation": {"selection": "validation"}}, "roster-of-choice"),
        (Roster(0, NAMES, NAMES, 4), {**MASKED, "strategy": {"rounds": 9}}, "roster-consent"),
        (Roster(0, NAMES, NAMES, 4), {**MASKED, "method": {"name": "gaussian"}}, "roster-alone"),
    ],
)  # fmt: skip
def test_lists_that_a_run_cannot_go_on_with_change_nothing(finished, now, sections, code):
    changed(finished, **sections)
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    with pytest.raises((RefusedError, ExperimentError)) as refused:
        continued(finished, now, {"strategy.rounds": 2})
    assert refused.value.code == code
    assert before == {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}


def test_a_party_comes_goes_and_comes_back(finished):
    more = {"strategy.rounds": 5}
    three = ("north", "west", "east")
    roster, settings = continued(finished, Roster(0, NAMES, three, 4), more)
    assert (roster.round, roster.expected) == (2, three)
    assert settings["partition.clients"] == 4
    assert (settings["partition.join"], settings["partition.leave"]) == ({"3": 2}, {"1": 2})
    RunDirectory(finished).rewind(0, [{}])  # as before a first further round
    again = continued(finished, Roster(0, NAMES, three, 5), {})[1]  # nothing new
    assert {key: again[key] for key in settings} == settings
    everyone = Roster(0, NAMES, NAMES, 5)
    _, settings = continued(finished, everyone, more)
    assert (settings["partition.join"], settings["partition.leave"]) == ({"3": 2}, {})
    roster, settings = continued(finished, Roster(0, NAMES, NAMES[:3], 6), more)
    assert settings["partition.without"] == [3]  # it came in no round
    assert len(read(finished)) == 4
    shutil.rmtree(finished / "checkpoints")
    assert continued(finished, Roster(0, NAMES, NAMES, 6), more)[0].round == 0


def test_who_is_revoked_while_a_run_goes_on_is_missing_at_once(finished):
    first = read(finished)[-1]
    shut_out(finished, first, {"west", "no party"})
    shut_out(finished, first, {"west"})  # the same again
    assert read(finished) == [first, replace(first, round=2, expected=NAMES[:2])]
    # the same command again takes it over, and leaves what is finished as it is
    before = (finished / "result.json").read_bytes()
    roster, settings = continued(finished, Roster(0, NAMES[:3], NAMES[:2], 4), {})
    assert (roster.expected, settings["strategy.rounds"]) == (NAMES[:2], 2)
    assert (finished / "result.json").read_bytes() == before
    # more rounds, and it left when it was revoked, not now
    versions = [first, replace(first, round=1, expected=NAMES[:2])]
    (finished / FILE).write_text(json.dumps([asdict(version) for version in versions]))
    more = {"strategy.rounds": 3}
    _, settings = continued(finished, Roster(0, NAMES[:3], NAMES[:2], 4), more)
    assert (settings["strategy.rounds"], settings["partition.leave"]) == (3, {"2": 1})
    assert (finished / "result.json").exists()
    RunDirectory(finished).add_metrics({"round": 3})
    assert not (finished / "result.json").exists()
    # and the command that began it goes on with that
    _, settings = continued(finished, Roster(0, NAMES[:3], NAMES[:2], 4), {"strategy.rounds": 2})
    assert (settings["strategy.rounds"], settings["partition.leave"]) == (3, {"2": 1})


def test_a_run_that_was_taken_back_may_end_earlier(finished):
    shut_out(finished, read(finished)[-1], {"west"})
    now = Roster(0, NAMES[:3], NAMES[:2], 4)
    path = finished / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "rolled_back": 1}))
    assert continued(finished, now, {"strategy.rounds": 1})[1]["strategy.rounds"] == 1


def test_a_party_that_comes_back_while_a_run_goes_on_is_on_the_list_again(finished):
    first = read(finished)[-1]
    shut_out(finished, first, {"west"})
    shut_out(finished, first, set())
    assert [version.expected for version in read(finished)] == [NAMES[:3], NAMES[:2], NAMES[:3]]
    assert continued(finished, first, {})[1]["partition.clients"] == 3


def test_a_run_that_a_process_uses_is_not_opened_for_further_rounds(finished):
    """As by a second coordinator at another port."""
    files = {
        path: path.read_bytes()
        for path in finished.rglob("*")
        if path.name != ".lock" and path.is_file()
    }
    with (
        RunDirectory(finished).locked(),
        pytest.raises(RunDirectoryError, match="is in use by another process"),
    ):
        continued(finished, Roster(0, NAMES, NAMES, 4), {"strategy.rounds": 2})
    assert all(path.read_bytes() == content for path, content in files.items())


def test_a_kill_while_the_first_further_round_is_kept_is_made_good(finished, monkeypatch):
    """The result has gone, and not all files are those of the run that goes on."""
    more, everyone = {"strategy.rounds": 3}, Roster(0, NAMES, NAMES, 4)
    continued(finished, everyone, more)
    before = (finished / "manifest.json").read_bytes()

    def killed(*paths, **more):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            RunDirectory(finished).add_metrics({"round": 3})
    assert not (finished / "result.json").exists()
    assert (finished / "manifest.json").read_bytes() == before
    assert continued(finished, everyone, {})[1]["strategy.rounds"] == 3
    assert not (finished / "further").exists()
    assert (finished / "manifest.json").read_bytes() != before
    assert [version.parties for version in read(finished)] == [NAMES[:3], NAMES]


def test_a_return_to_an_earlier_round_forgets_rounds_that_never_came(finished):
    continued(finished, Roster(0, NAMES, NAMES, 4), {"strategy.rounds": 3})
    rollback(finished, 1, "to look again")
    assert not (finished / "further").exists()
    assert json.loads((finished / "manifest.json").read_text())["rolled_back"] == 1
    assert read(finished) == [Roster(0, NAMES[:3], NAMES[:3], 3)]


def test_a_run_that_waits_for_a_new_party_is_no_complete_one(finished):
    """As ``fedunseen health`` says it, while the command that waits is there."""
    assert _process(finished)["over"]
    continued(finished, Roster(0, NAMES, NAMES, 4), {"strategy.rounds": 3})
    assert _process(finished)["over"]
    with RunDirectory(finished).locked():
        assert not _process(finished)["over"]
