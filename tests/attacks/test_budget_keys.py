"""A site's privacy budget is not reset: not by another path of the data, nor by an older or a
missing file.
"""

import shutil
from pathlib import Path

import pytest
from test_answering_again import FIRST, code

from fedunseen.deploy.releases import Releases, checked
from fedunseen.deploy.secagg.ledger import Ledger
from masked_parties import Parties

EPSILON = (1.0, 1e-5)


class Site:
    """A party's --state folder: a run charges its plan, opens sums, and writes what leaves."""

    def __init__(self, folder, data="here", limit=2.5):
        self.state, self.ledger = folder, Ledger(folder / "ledger", data, moved=True)
        self.releases = Releases(folder, limit)
        self.releases.bind(self.ledger)
        if not (folder / "ledger/ledger.json").exists():
            self.ledger.write({})  # as a party that pins its federation

    def run(self, number):
        plan = f"{number:064x}"
        self.releases.charge(f"run {number}", EPSILON, plan)
        self.ledger.release(plan, self.ledger.digests([b"sample"]))
        content = Parties(3).plan.content()
        opened = {"k": 0, "rho": "", "reply": {}}
        self.ledger.change_plan(plan, content=content, waiting=None, opened=opened)
        self.releases.add(f"run {number}", "open", bytes=10)
        return self


def backup(state, to):
    shutil.copytree(state, to)
    return to


def test_what_was_spent_counts_under_any_path_of_the_data(tmp_path):
    Site(tmp_path, "here").run(1)
    Site(tmp_path, "there").run(2)
    elsewhere = Site(tmp_path, "elsewhere")
    assert elsewhere.releases.spent() == (2.0, 2e-5)
    assert code(elsewhere.run, 3) == "epsilon-limit"
    assert [line["kind"] for line in elsewhere.releases.lines] == ["budget", "open"] * 2
    elsewhere.run(2)  # the same plan again costs nothing, also after the data were moved
    Site(tmp_path, limit=3.0).run(3)  # the control: it is the limit that refuses


def lose(name):
    def change(state, old):
        (state / name).unlink()

    return change


def restore(*names):
    def change(state, old):
        for name in names:
            for path in state.glob(name):
                path.unlink()
            for path in old.glob(name):
                shutil.copy(path, state / path.relative_to(old))

    return change


def cut(state, old):
    path = state / "releases.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))


def edit(state, old):
    path = state / "releases.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"epsilon": 1.0', b'"epsilon": 0.0', 1))


def lose_ledger(state, old):
    shutil.rmtree(state / "ledger")


CHANGES = {
    "history lost": (lose("releases.jsonl"), "history-older"),
    "history cut": (cut, "history-older"),
    "history edited": (edit, "history-older"),
    "history of a backup": (restore("releases.jsonl"), "history-older"),
    "ledger lost": (lose_ledger, "ledger-older"),
    "ledger of a backup": (restore("ledger/*"), "ledger-older"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_history_and_a_ledger_that_disagree_are_refused(change, tmp_path):
    do, why = CHANGES[change]
    state = tmp_path / "state"
    Site(state).run(1)
    old = backup(state, tmp_path / "old")
    Site(state).run(2)
    Site(state)  # the control: they agree
    do(state, old)
    before = {path: path.read_bytes() for path in state.rglob("*") if path.is_file()}
    assert code(Site, state) == why
    assert (
        code(checked, Releases(state)) == why
    )  # `join` as it starts, before it reads data or greets anyone
    assert {path: path.read_bytes() for path in state.rglob("*") if path.is_file()} == before


def test_both_files_of_one_backup_agree(tmp_path):
    """A limitation: nothing at the site can tell a whole older copy from the newest one."""
    state = tmp_path / "state"
    Site(state).run(1)
    old = backup(state, tmp_path / "old")
    Site(state).run(2)
    restore("releases.jsonl", "ledger/*")(state, old)
    assert Site(state).releases.spent() == EPSILON


@pytest.mark.parametrize("writes", range(5))
def test_a_kill_between_any_two_writes_leaves_files_that_agree(writes, tmp_path, monkeypatch):
    """A run writes five times, and none or one to four of them are done."""
    left = [writes]

    class KilledError(Exception):
        pass

    def counted(write):
        def call(*given, **named):
            if not left[0]:
                raise KilledError
            left[0] -= 1
            return write(*given, **named)

        return call

    site = Site(tmp_path)
    monkeypatch.setattr(Releases, "add", counted(Releases.add))
    monkeypatch.setattr(
        "fedunseen.deploy.secagg.ledger._write", counted(Ledger.write.__globals__["_write"])
    )
    with pytest.raises(KilledError):
        site.run(1)
    left[0] = 99
    Site(tmp_path).run(1).run(2)
    assert Site(tmp_path).releases.spent() == (2.0, 2e-5)


def test_a_party_without_masks_needs_no_ledger_and_has_one_budget(tmp_path):
    releases = checked(Releases(tmp_path))
    releases.charge("run 1", (float("inf"), 0.0))
    releases.add("run 1", "round", bytes=10)
    assert not (tmp_path / "ledger").exists()
    assert code(checked(Releases(tmp_path, 1e9)).charge, "run 2", EPSILON) == "epsilon-limit"
    Site(tmp_path)  # its first masked run


@pytest.fixture
def first(tmp_path):
    """A party that answered by file with the first version, with a budget."""
    return Path(shutil.copytree(FIRST / "by-file", tmp_path / "state"))


def test_a_state_of_the_first_version_is_read_and_from_then_on_kept(first):
    site = Site(first, limit=1.5)
    assert (site.ledger.writes, site.releases.spent()) == (None, EPSILON)
    assert code(site.run, 1) == "epsilon-limit"
    Site(first).run(1)
    (first / "releases.jsonl").unlink()
    assert code(Site, first) == "history-older"


def test_a_history_of_the_first_version_lacks_no_plan_that_its_ledger_holds(first):
    (first / "releases.jsonl").unlink()
    assert code(Site, first) == "history-older"


def test_an_opened_sum_of_the_first_version_has_a_history(tmp_path):
    """It wrote lines without the plan: any line will do, and none at all means that the file was
    lost.
    """
    shutil.copytree(FIRST / "closed", tmp_path / "ledger")
    assert code(Site, tmp_path) == "history-older"
    Releases(tmp_path).add("run 1", "open", bytes=10)
    Site(tmp_path)
