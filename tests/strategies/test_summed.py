import ctypes
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedunseen.core.errors import FedUnseenError
from fedunseen.core.parameters import of_each_client, size_in_bytes
from fedunseen.core.tensor_store import TensorStore
from fedunseen.core.trainer import LocalResult
from fedunseen.data import ClassSpace, Quantization
from fedunseen.encoders.backbone import Backbone
from fedunseen.federation.in_process import InProcess
from fedunseen.federation.worker import Worker
from fedunseen.methods import Ridge
from fedunseen.strategies import FedAvg, Reply, Scaffold
from fedunseen.strategies.summed import Summed, forget
from known_names import refuses

SPACE = torch.tensor([1, 2], dtype=torch.uint8)
NOTHING = {"total": torch.zeros(3, dtype=torch.float64), "space": SPACE}


def sums(seed, space=SPACE):
    generator = torch.Generator().manual_seed(seed)
    return {
        "total": torch.randn(3, generator=generator, dtype=torch.float64) * 10.0**seed,
        "space": space,
    }


def merged(strategy, state, clients, round=0):
    return strategy.merge(
        state, NOTHING, [Reply(client, sums(client), 1, 1) for client in clients], round
    )


@pytest.mark.parametrize("inner", [FedAvg, Scaffold])
def test_the_total_is_the_sum_in_client_order_whoever_came_when(inner):
    strategy = Summed(inner(), NOTHING)
    state, total = merged(strategy, strategy.init(NOTHING, 6), [0, 1, 2, 3, 4, 5])
    wanted = sum((sums(client)["total"] for client in range(1, 6)), sums(0)["total"])
    assert torch.equal(total["total"], wanted)
    late, _ = merged(strategy, {}, [2, 5])
    late, _ = merged(strategy, late, [0], 1)
    late, again = merged(strategy, late, [1, 3, 4], 2)
    assert torch.equal(again["total"], wanted)
    assert late.keys() == state.keys()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="of glibc")
def test_of_sums_that_are_kept_memory_holds_one_copy():
    def memory():
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

    def validate(sums):
        torch.cat([sums["total"] * 2.0] * 2)  # a check takes several times as much
        return ""

    store = TensorStore()
    large = {"count": torch.zeros(100), "total": torch.ones(300_000, dtype=torch.float64)}
    replies = [Reply(client, store.put(large), 0, 0) for client in range(20)]
    strategy = Summed(FedAvg(), {n: v * 0 for n, v in large.items()}, validate=validate)
    strategy.merge({}, large, replies[:1], 0)
    before = memory()
    state, _ = strategy.merge({}, large, replies, 0)
    assert memory() - before < 1.25 * size_in_bytes(state)


def test_nothing_is_sent_to_clients_and_their_sums_are_sent_as_they_are():
    strategy = Summed(Scaffold(), NOTHING)
    instruction = strategy.recall(strategy.instruct({}, sums(3), 0), {}, 0)
    assert (
        instruction.params,
        instruction.extras,
        instruction.kept,
        instruction.client_params,
    ) == (
        {},
        {},
        {},
        {},
    )
    update, state = strategy.finish(instruction, LocalResult(sums(2), {}, 1), {})
    assert torch.equal(update["total"], sums(2)["total"])
    assert (state, strategy.lengths) == ({}, "nothing")
    assert strategy.expects(instruction) is NOTHING
    assert strategy.local_model({}, update) == update


def test_who_sends_again_counts_once_and_a_forgotten_client_was_never_there():
    strategy = Summed(FedAvg(), NOTHING)
    state, whole = merged(strategy, {}, [0, 1, 2])
    assert torch.equal(merged(strategy, state, [1], 1)[1]["total"], whole["total"])
    left, total = forget(state, 1)
    never, wanted = merged(strategy, {}, [0, 2])
    assert torch.equal(total["total"], wanted["total"])
    assert list(of_each_client(left)) == list(of_each_client(never)) == [0, 2]


def test_what_cannot_be_is_refused():
    strategy = Summed(FedAvg(), NOTHING)
    with refuses(
        "client 4: its sums are of another class space or another quantization: all parties need "
        "the same classes with the same descriptions, in the same order, and the same [data]",
        FedUnseenError,
    ):
        strategy.merge({}, NOTHING, [Reply(4, sums(4, SPACE + 1), 1, 1)], 0)
    state, _ = merged(strategy, {}, [0])
    with refuses(
        "no sums of client 3 are kept, so it cannot be forgotten (kept are: 0)", FedUnseenError
    ):
        forget(state, 3)
    with refuses("client 0 is the only one: without it nothing is left", FedUnseenError):
        forget(state, 0)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda reply: {"samples": 19},
         "its sums are of 20 samples of 1 classes, and it declared 19 samples of 1 classes"),
        (lambda reply: {"classes": 2},
         "its sums are of 20 samples of 1 classes, and it declared 20 samples of 2 classes"),
        (lambda reply: {"update": reply.update | {"total": 10_000 + reply.update["total"]}},
         "its sums cannot be those of any samples (a class's sum is beyond the range of its "
         "samples): leave it out, or let it send them again"),
    ],
)  # fmt: skip
def test_a_bad_party_is_dropped_and_the_others_are_merged(change, why):
    space = ClassSpace(("cat", "dog", "fox"), np.eye(3), tuple("abc"), [0, 1], [], [2])
    method = Ridge(Ridge.Settings(), space, torch.eye(3), Backbone((4,)))
    method.quantization = Quantization.of_unit_length(8, 5.0, 4)
    inputs = torch.nn.functional.normalize(
        torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), dim=1
    )
    labels = torch.arange(60) // 20 % 2
    strategy = Summed(
        FedAvg(), method.init(np.random.default_rng(0)), validate=method.validate_statistics
    )
    worker = Worker(
        method, strategy, inputs, labels, [np.arange(20 * k, 20 * k + 20) for k in range(3)], 0
    )
    honest = worker.finish

    def lying(work, result):
        reply, state = honest(work, result)
        return (replace(reply, **change(reply)) if work.client == 1 else reply), state

    worker.finish = lying
    done = InProcess(strategy, worker, drop_non_finite=True).round(
        0, {}, strategy.nothing, {}, [0, 1, 2]
    )
    assert done.dropped[1].startswith(why)
    assert done.params["count"].tolist() == [40, 0, 0]
    with pytest.raises(FedUnseenError, match="client 1: its sums"):
        InProcess(strategy, worker).round(0, {}, strategy.nothing, {}, [0, 1, 2])
