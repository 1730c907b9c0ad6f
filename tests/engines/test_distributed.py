"""The distributed engine over a link in this process: equal to the in-process engine, and unmoved
by what arrives.
"""

import logging
import threading
from concurrent.futures import Future

import pytest
import torch

from fedunseen.core.errors import FedUnseenError, QuorumError
from fedunseen.core.tensor_store import TensorStore
from fedunseen.deploy.remote import coordinator, patience
from fedunseen.deploy.remote.link import Spooled, complete
from fedunseen.deploy.remote.wire import WireError, failure, pack, unpack
from fedunseen.experiment.running import run
from fedunseen.federation.engine import needed
from links import Inline, answered, disturbed, elsewhere
from same import same, tensors
from small_runs import KilledError, experiment, kill

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_coordinator")]


class Reversed(Inline):
    """Completes the answers of a round in the opposite order, once all are asked."""

    def __init__(self, parties):
        super().__init__(parties)
        self.held = []

    def ask(self, name, message):
        future = Future()
        self.held.append((future, super().ask(name, message)))
        if len(self.held) == len(self.there):
            while self.held:
                late, answer = self.held.pop()
                late.set_result(answer.result())
        return future


def apart(out, link=None, resume=False, **settings):
    """Run an experiment over a link."""
    return elsewhere(
        experiment(engine__name="flower", engine__mode="simulation", **settings), out, link, resume
    )


def here(folder, **settings):
    """Run an experiment in this process."""
    return run(experiment(engine__mode="one-at-a-time", **settings), folder / "here")


def lying(lie):
    """Let client 1 change the content and the tensors of its answer in round 1 (counted from 0)."""

    def change(name, header, answer):
        if (name, header["round"]) != ("1", 1):
            return answer
        content, tensors = unpack(answer)
        lie(content, tensors)
        return pack(content, tensors)

    return change


LOW_RANK = {
    "compression__name": "low-rank", "method__name": "clswgan", "method__hidden": 32, "method__synthetic": 10,
    "method__head_epochs": 1, "method__critic_steps": 1, "strategy__shared": ["generator.*"],
}  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy__name": "scaffold"},
        {"strategy__name": "local"},
        {"strategy__name": "centralised"},
        {"strategy__fraction": 0.4, "defence__name": "median"},
        {"evaluation__selection": "validation"},
        {"compression__name": "top-k", "compression__keep": 0.1, "strategy__name": "fednova"},
        {"compression__name": "8-bit", "defence__name": "median"},
        {"compression__name": "1-bit", "strategy__name": "moon", "strategy__fraction": 0.7},
        {"attack__name": "nan", "attack__rounds": "1", "defence__name": "median"},  # it is left out
        {"preset": "digit-pairs-gaussian", "method__name": "gaussian"},
        {"preset": "digit-pairs-gaussian", "method__name": "ridge"},
        LOW_RANK,
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_the_same_bits_as_in_process(settings, tmp_path):
    one, other = apart(tmp_path / "apart", **settings), here(tmp_path, **settings)
    assert same(one, other)
    own = {"seconds", "client_seconds"} | (
        {"dropped", "bytes_up"} if "attack__name" in settings else set()
    )
    for line, twin in zip(one.metrics, other.metrics, strict=True):
        assert {key: line[key] for key in line.keys() - own} == {
            key: twin[key] for key in twin.keys() - own
        }


def test_replies_merge_in_client_order_whoever_answers_first(tmp_path):
    assert same(apart(tmp_path / "reversed", Reversed(3)), here(tmp_path))


def test_a_run_goes_on_where_it_was_killed(tmp_path):
    scaffold = {"strategy__name": "scaffold", "strategy__rounds": 3}
    with pytest.raises(KilledError):
        apart(tmp_path / "killed", Inline(3, lying(kill)), **scaffold)
    resumed = apart(tmp_path / "killed", resume=True, **scaffold)
    assert same(resumed, apart(tmp_path / "whole", **scaffold))


def cut(content, tensors):
    tensors["update/g.weight"] = tensors["update/g.weight"][:, :-1]


def test_a_refused_reply_is_left_out_and_named(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "fedunseen.federation"):
        done = apart(
            tmp_path / "run", Inline(3, lying(cut))
        )  # all are asked for, and all have answered
    assert [line["participants"] for line in done.metrics] == [[0, 1, 2], [0, 2]]
    why = "'g.weight' of its update has the shape (20, 15), not (20, 16)"
    assert done.metrics[1]["dropped"] == {"1": why}
    assert f"round 2: the reply of 1 is refused: {why}" in caplog.messages


def test_a_short_form_that_stands_for_no_update_is_refused_and_named(tmp_path, caplog):
    sizes = []

    def negate(content, tensors):
        tensors["update/g.weight:scale"] *= -1

    def measure(name, header, answer):
        sizes.append(len(answer))
        return lying(negate)(name, header, answer)

    done = apart(
        tmp_path / "run", Inline(3, measure), compression__name="8-bit", method__hidden=[200]
    )
    why = "'g.weight' of its update cannot be read: its scale is below zero"
    assert done.metrics[1]["dropped"] == {"1": why}
    sent = done.metrics[0]["bytes_up"] / 3
    plain = sum(value.numel() * 4 for value in tensors(tmp_path / "run").values())
    assert sent < 0.26 * plain  # the update
    state = (
        plain + 3000
    )  # a worker process sends the state along: what is left, one number for each of the update's
    assert max(sizes) < sent + state


def test_divergence_ends_a_simulation_as_it_does_in_process(tmp_path):
    def diverge(name, header, answer):
        content, tensors = unpack(answer)
        return pack(content, {key: value * torch.nan for key, value in tensors.items()})

    why = "training diverged: the update of client 0 in round 1 is not finite; lower"
    with pytest.raises(FedUnseenError, match=why):
        apart(tmp_path / "run", Inline(3, diverge))


def test_who_could_not_answer_is_asked_again_and_the_patience_may_change(tmp_path):
    full = failure("refused-storage", "OSError: No space left on device")
    link = Inline(3, lambda name, header, answer: full if name == "0" else answer)
    with pytest.raises(QuorumError) as stopped:
        apart(tmp_path / "run", link, engine__patience=0.1)
    assert str(stopped.value) == (
        "round 1 has 2 of the 3 replies that it needs: 0 could not take part (OSError: No space "
        "left on device): fix that, or change engine.quorum, engine.timeout or engine.patience, "
        "and continue with --resume"
    )
    assert len(link.asked) > 4
    done = apart(tmp_path / "run", link, resume=True, engine__quorum=2)
    assert [line["participants"] for line in done.metrics] == [[1, 2], [1, 2]]


def test_a_merge_that_is_not_finite_is_not_kept(tmp_path):
    def shorten(content, tensors):
        content["step_lengths"] = dict.fromkeys(content["step_lengths"], 1e-45)

    why = "the merged model of round 2 is not finite; the largest update is that of"
    with pytest.raises(FedUnseenError, match=why):
        apart(tmp_path / "run", Inline(3, lying(shorten)), strategy__name="scaffold")
    assert len(apart(tmp_path / "run", resume=True, strategy__name="scaffold").metrics) == 2


def test_who_does_not_answer_is_asked_again_and_nobody_else(tmp_path):
    link = Inline(3, disturbed("round", "2", lambda answer: None))
    assert same(apart(tmp_path / "run", link), here(tmp_path))
    assert [name for round, name in link.asked if round == 0] == ["0", "1", "2", "2"]


def test_who_is_not_there_is_waited_for_and_taken_back(tmp_path):
    class Late(Inline):
        looks = 0

        def present(self):
            self.looks += 1
            return self.there if self.looks > 5 else {"0": "first", "1": "first"}

    assert apart(tmp_path / "all", Late(3)).metrics[0]["participants"] == [0, 1, 2]
    done = apart(tmp_path / "some", Late(3), engine__quorum=0.5, strategy__rounds=8)
    first, *_, last = done.metrics
    assert (first["participants"], first["dropped"]) == ([0, 1], {"2": "it has not answered"})
    assert last["participants"] == [0, 1, 2]


class Revoking(Inline):
    """Client 2 is revoked once it has been looked for, or asked, some times."""

    def __init__(self, looks=0, asks=0):
        super().__init__(3)
        self.looks, self.asks = looks, asks

    def present(self):
        self.looks -= 1
        return self.there if self.asks else {name: "first" for name in self.there if name != "2"}

    def revoked(self):
        return {"2"} if self.looks < 0 and self.asks == 0 else ()

    def ask(self, name, message):
        if name != "2":
            return super().ask(name, message)
        self.asks -= 1
        self.asked.append((unpack(message)[0]["round"], name))
        return answered(None)


@pytest.mark.parametrize("more", [{}, {"engine__quorum": 1.0}, {"engine__buffer": 3}], ids=str)
@pytest.mark.parametrize("how", [{"looks": 5}, {"asks": 1}], ids=str)
def test_who_is_revoked_is_not_waited_for(how, more, tmp_path, caplog):
    """All must answer, and the patience is for hours: the run goes on without the one."""
    link = Revoking(**how)
    done = apart(tmp_path / "run", link, engine__patience=9999.0, **more)
    rest = {key: value for key, value in more.items() if key != "engine__quorum"}
    assert same(done, apart(tmp_path / "rest", partition__without=[2], **rest))
    assert [line["participants"] for line in done.metrics] == [[0, 1]] * len(done.metrics)
    if "engine__buffer" not in more:
        assert done.metrics[0]["dropped"] == {"2": "it was revoked"}
    assert all("dropped" not in line for line in done.metrics[1:])  # it is drawn no more
    assert [name for _, name in link.asked].count("2") == how.get("asks", 0)
    assert caplog.messages.count("2 was revoked, and is not waited for any more") == 1


def test_a_round_of_revoked_parties_alone_ends_the_run(tmp_path):
    link = Inline(3)
    link.revoked = lambda: ("0", "1", "2")
    with pytest.raises(QuorumError, match="all parties of this round were revoked: add others"):
        apart(tmp_path / "run", link, engine__patience=9999.0)


def test_patience_comes_to_an_end(tmp_path):
    link = Inline(2)
    why = r"round 1 has 0 of the 3 replies that it needs: no connection to 2 \(0, 1 connected\): fix that"
    with pytest.raises(QuorumError, match=why):
        apart(tmp_path / "run", link, engine__patience=0.1)
    assert not link.asked


class Slow(Inline):
    """Client 2 answers its first question when the third merge asks others, where client 1 is never
    done.
    """

    def __init__(self):
        super().__init__(3)
        self.third, self.over, self.sent = threading.Event(), threading.Event(), {}

    def ask(self, name, message):
        future = Future()
        threading.Thread(
            target=lambda: complete(future, self.work(name, message)), daemon=True
        ).start()
        return future

    def work(self, name, message):
        header, instruction = unpack(message)
        if header["round"] == 2:
            self.third.set()
            if name == "1":
                assert self.over.wait(60)
        if name == "2":
            assert self.third.wait(60)
        answer = self.answer(name, message)
        self.sent[name, header["round"]] = unpack(answer)[1]
        if header["round"] == 0:
            self.first = instruction
        return answer


def test_late_replies_count_by_their_age(tmp_path):
    link = Slow()
    buffered = {
        "engine__buffer": 2,
        "engine__staleness": 1.0,
        "strategy__name": "fedavg",
        "strategy__rounds": 3,
        "strategy__weights": "uniform",
    }
    done = apart(tmp_path / "run", link, **buffered)
    link.over.set()
    assert [line["participants"] for line in done.metrics] == [[0, 1], [0, 1], [0, 2]]
    assert [line["clock"]["ages"] for line in done.metrics] == [[0, 0], [0, 0], [0, 2]]
    merged = [("0", 0, 1), ("1", 0, 1), ("0", 1, 1), ("1", 1, 1), ("0", 2, 1), ("2", 0, 3)]
    for name, value in tensors(tmp_path / "run").items():
        slow = link.first[f"params/{name}"].double()
        for client, round, count in merged:
            slow = slow + 0.5 * link.sent[client, round][f"update/{name}"].double() / count
        assert torch.allclose(value.double(), slow, atol=1e-6)


@pytest.mark.parametrize("strategy", ["fedadam", "moon"])
def test_a_buffer_for_all_is_a_synchronous_round(strategy, tmp_path):
    link = Inline(3, disturbed("round", "2", lambda answer: None))  # which is asked again
    short = {"compression__name": "low-rank", "strategy__name": strategy}
    late = apart(tmp_path / "late", link, engine__buffer=3, **short)
    assert same(late, here(tmp_path, **short))
    assert all(line["clock"] == {"ages": [0, 0, 0]} for line in late.metrics)
    assert len(link.asked) == 3 + 1 + 3


@pytest.mark.parametrize("settings", [{}, {"engine__buffer": 3}], ids=["round", "buffer"])
def test_a_party_that_fails_often_is_asked_for_as_long_as_the_patience_lasts(
    settings, tmp_path, monkeypatch
):
    """A disk is full for twenty messages, and someone empties it: the run goes on."""
    monkeypatch.setattr(patience, "LONGEST", 0.01)
    full, failed = failure("refused-storage", "OSError: No space left on device"), []

    def change(name, header, answer):
        if name == "0" and len(failed) < 20:
            failed.append(header["round"])
            return full
        return answer

    done = apart(tmp_path / "run", Inline(3, change), engine__patience=600.0, **settings)
    assert failed == [0] * 20
    assert [line["participants"] for line in done.metrics] == [[0, 1, 2]] * len(done.metrics)


def test_a_buffer_that_nobody_fills_pauses_the_run(tmp_path):
    link = Inline(3, lambda name, header, answer: None if name == "0" else answer)
    with pytest.raises(
        QuorumError, match="round 1 has 2 of the 3 replies that it needs: 0 did not answer"
    ):
        apart(tmp_path / "run", link, engine__buffer=3, engine__patience=2.0)
    assert len(link.asked) > 4
    done = apart(tmp_path / "run", Inline(3, lying(cut)), resume=True, engine__buffer=3)
    assert [line["participants"] for line in done.metrics] == [[0, 1, 2], [0, 2]]
    assert "'g.weight' of its update has the shape" in done.metrics[1]["dropped"]["1"]


@pytest.mark.parametrize(
    ("quorum", "clients", "need"), [(1, 3, 1), (5, 3, 3), (0.34, 3, 2), (1.0, 7, 7), (0.1, 10, 1)]
)
def test_quorum(quorum, clients, need):
    assert needed(quorum, clients) == need


class OnDisk(Inline):
    """A link whose answers wait on disk."""

    def ask(self, name, message):
        future = super().ask(name, message)
        spooled = Spooled()
        spooled.add(future.result())
        held = Future()
        complete(held, spooled)
        return held


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"strategy__name": "scaffold"},
        {"strategy__name": "fedadam"},
        {"defence__name": "median"},
    ],
)
def test_replies_on_disk_merge_to_the_same_bits(tmp_path, monkeypatch, settings):
    expected = apart(tmp_path / "memory", **settings)
    stored = []

    class Noted(TensorStore):
        def put(self, params):
            stored.append(super().put(params))
            return stored[-1]

    monkeypatch.setattr(coordinator, "SPOOLED", 0)
    monkeypatch.setattr(coordinator, "TensorStore", Noted)
    found = apart(tmp_path / "disk", OnDisk(3), **settings)
    assert same(found, expected)
    assert len(stored) >= 3


@pytest.mark.parametrize("cut", [0, 3, 40, -1])
def test_a_damaged_answer_on_disk_is_refused_as_one_in_memory_is(cut):
    whole = pack({"client": 1}, {"w": torch.ones(4)})
    spooled = Spooled()
    spooled.add(whole[:cut])
    with pytest.raises(WireError) as memory:
        unpack(whole[:cut])
    with pytest.raises(WireError) as disk:
        unpack(spooled)
    assert str(disk.value).partition("(")[0] == str(memory.value).partition("(")[0]
    assert unpack(bytes(whole))[0] == {"client": 1}
