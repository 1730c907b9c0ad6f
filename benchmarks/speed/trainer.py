"""How fast a round's local updates are: batched, one at a time, a plain hand-written loop, pfl's
simulation and FedJAX.

Every way starts from the same parameters, takes the same batches in the same order and must end at
the same weights (checked). Ours is :class:`fedunseen.federation.worker.Worker`, which a run uses:
its time includes drawing the batches and making the replies, which the plain loop is spared. Just
before each measured round a plain one runs, and their times make one ratio; the table gives the
median of the ratios, the least and the greatest. See ``benchmarks/README.md``.
"""

from __future__ import annotations

import argparse
import copy
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from fedunseen.core.parameters import Params
from fedunseen.core.random import stream
from fedunseen.data import ClassSpace
from fedunseen.encoders.backbone import Backbone
from fedunseen.federation.in_process import InProcessSettings
from fedunseen.federation.worker import Execution, Work, Worker
from fedunseen.methods.fedzsl import FedZSL
from fedunseen.strategies import Instruction
from fedunseen.strategies.fedavg import FedAvg

try:  # pip install 'pfl[pytorch]'; only this benchmark uses it
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.common_types import Population
    from pfl.context import CentralContext
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import MinimizeReuseUserSampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel
except ImportError:
    SimulatedBackend = None
try:  # pip install fedjax
    import fedjax
    import jax
except ImportError:
    fedjax = None

LR, MOMENTUM, WEIGHT_DECAY = 0.01, 0.9, 1e-5
TOLERANCE = 1e-4
"""Greatest difference of a weight at which two ways agree."""

Updates = list[Params]
Way = Callable[[], Updates]


@dataclass(frozen=True)
class Case:
    """One line of the table: clients x batch x steps, the network's widths, and how fast ``auto``
    must be.
    """

    clients: int
    batch: int
    steps: int
    widths: tuple[int, ...]
    classes: int
    target: float

    @property
    def name(self) -> str:
        """How the table calls it."""
        return f"{self.clients} x {self.batch} x {self.steps}, {'-'.join(map(str, self.widths))}"


CASES = (
    Case(100, 32, 2, (512, 85), 50, 3.0),
    Case(1000, 10, 5, (64, 64, 10), 10, 15.0),
    Case(100, 64, 10, (128, 256, 20), 100, 3.0),
    Case(10, 32, 2, (2048, 312), 200, 1.2),
    Case(10, 64, 22, (2048, 312), 200, 0.95),
)
SMALLEST = (Case(3, 4, 2, (6, 5, 4), 5, 0.0),)


class Net(nn.Sequential):
    """The network of the plain loop and of pfl: layers with ReLU between, then compatibility with
    the seen classes.
    """

    semantics: Tensor

    def __init__(self, widths: Sequence[int], semantics: Tensor) -> None:
        layers: list[nn.Module] = []
        for i in range(len(widths) - 1):
            layers += [nn.ReLU()] * (i > 0) + [nn.Linear(widths[i], widths[i + 1])]
        super().__init__(*layers)
        self.register_buffer("semantics", semantics)

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Softmax cross-entropy over the seen classes (FedZSL Eq. 3)."""
        return F.cross_entropy(self(inputs) @ self.semantics.T, labels)

    def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, object]:
        """Pfl asks for it; nothing is evaluated here."""
        return {}


class Federation:
    """One case: random data, its clients, and the ways to train a round."""

    def __init__(self, case: Case) -> None:
        rng = np.random.default_rng(0)
        self.case = case
        own = case.batch * case.steps  # samples of a client: one pass over them is the round
        total = case.clients * own
        seen = case.classes * 4 // 5
        semantics = rng.normal(size=(case.classes, case.widths[-1])) / case.widths[-1] ** 0.5
        self.space = ClassSpace(
            tuple(f"class {i}" for i in range(case.classes)),
            semantics,
            tuple(f"attribute {i}" for i in range(case.widths[-1])),
            np.arange(seen),
            np.array([], dtype=np.int64),
            np.arange(seen, case.classes),
        )
        self.semantics = torch.from_numpy(semantics.astype(np.float32))
        self.inputs = torch.from_numpy(
            rng.standard_normal((total, case.widths[0]), dtype=np.float32)
        )
        self.labels = torch.from_numpy(rng.integers(0, seen, total))
        self.samples: list[NDArray[np.int64]] = np.split(rng.permutation(total), case.clients)
        settings = FedZSL.Settings(
            hidden=case.widths[1:-1], kl=0.0, consistency=0.0, batch_size=case.batch,
            lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY,
        )  # fmt: skip
        self.method = FedZSL(settings, self.space, self.semantics, Backbone(case.widths[:1]))
        self.params = self.method.init(stream(0, "initialisation"))
        self.works = [Work(client, Instruction(self.params), {}) for client in range(case.clients)]
        planner = self.worker("auto")
        plans = [planner.task(work, 0).plans[""] for work in self.works]
        self.rows = [
            [torch.from_numpy(own[step]) for step in plan.index]
            for plan, own in zip(plans, self.samples, strict=True)
        ]
        self.chosen = (
            "batched"
            if planner._batched([planner.task(work, 0) for work in self.works])
            else "one-at-a-time"
        )

    def worker(self, mode: str) -> Worker:
        """Return what a run would train with."""
        strategy = FedAvg(local_epochs=1)
        memory = InProcessSettings().memory * 2**20
        execution = Execution(mode, memory)
        return Worker(self.method, strategy, self.inputs, self.labels, self.samples, 0, execution)

    def ours(self, mode: str) -> Way:
        """Return the round of a run's own worker."""
        worker = self.worker(mode)
        return lambda: [reply.update for reply, _ in worker.round(self.works, 0)]

    def net(self) -> Net:
        """Return the network with the initial parameters."""
        net = Net(self.case.widths, self.semantics[: len(self.space.seen)])
        _load(net, self.params)
        return net

    def plain(self) -> Way:
        """Return the loop that one writes by hand: a copy of the model, an optimiser, and the
        difference at the end.
        """
        model = self.net()
        _load(model, self.params)

        def round() -> Updates:
            updates = []
            for rows in self.rows:
                net = copy.deepcopy(model)
                optimiser = torch.optim.SGD(
                    net.parameters(), LR, MOMENTUM, weight_decay=WEIGHT_DECAY
                )
                for chosen in rows:
                    optimiser.zero_grad()
                    net.loss(self.inputs[chosen], self.labels[chosen]).backward()
                    optimiser.step()
                pairs = zip(self.params.items(), net.parameters(), strict=True)
                updates.append({name: new.detach() - old for (name, old), new in pairs})
            return updates

        return round

    def pfl(self) -> Way:
        """Return a round of pfl's ``SimulatedBackend``; it gives the sum over clients alone, and
        its data in order.
        """
        net, case = self.net(), self.case
        model = PyTorchModel(
            net,
            partial(torch.optim.SGD, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY),
            torch.optim.SGD(net.parameters(), 1.0),
        )
        order = [torch.cat(rows) for rows in self.rows]
        data = [
            Dataset([self.inputs[rows], self.labels[rows]], user_id=str(k))
            for k, rows in enumerate(order)
        ]
        federated = FederatedDataset(
            data.__getitem__, MinimizeReuseUserSampler(range(case.clients))
        )
        backend = SimulatedBackend(federated, federated)
        algorithm = FederatedAveraging()
        context = CentralContext(
            current_central_iteration=0,
            do_evaluation=False,
            cohort_size=case.clients,
            population=Population.TRAIN,
            algorithm_params=NNAlgorithmParams(1, 1, case.clients, None),
            model_train_params=NNTrainHyperParams(
                local_num_epochs=1, local_learning_rate=LR, local_batch_size=case.batch
            ),
        )

        def round() -> Updates:
            statistics, _ = backend.gather_results(model, algorithm, central_context=context)
            return [dict(zip(self.params, (value for _, value in statistics.items()), strict=True))]

        return round

    def fedjax(self) -> Way:
        """Return a round of FedJAX's compiled ``for_each_client``; its batches are cut out
        beforehand.
        """
        start = [value.detach().numpy() for value in self.net().parameters()]
        semantics = self.semantics[: len(self.space.seen)].numpy()
        clients = [
            (
                k,
                [
                    {"x": self.inputs[chosen].numpy(), "y": self.labels[chosen].numpy()}
                    for chosen in rows
                ],
                None,
            )
            for k, rows in enumerate(self.rows)
        ]

        def loss(params: Any, batch: Any) -> Any:
            hidden = batch["x"]
            for i in range(0, len(params), 2):
                hidden = (jax.nn.relu(hidden) if i else hidden) @ params[i].T + params[i + 1]
            logs = jax.nn.log_softmax(hidden @ semantics.T)
            return -logs[jax.numpy.arange(len(batch["y"])), batch["y"]].mean()

        def step(state: Any, batch: Any) -> Any:
            params, gradient = state["params"], jax.grad(loss)(state["params"], batch)
            old = zip(state["pushes"], gradient, params, strict=True)
            pushes = [MOMENTUM * push + g + WEIGHT_DECAY * p for push, g, p in old]
            return {
                "pushes": pushes,
                "params": [p - LR * m for p, m in zip(params, pushes, strict=True)],
            }

        def begin(shared: Any, _: Any) -> Any:
            return {"pushes": [jax.numpy.zeros_like(p) for p in shared], "params": shared}

        def end(shared: Any, state: Any) -> Any:
            return [new - old for new, old in zip(state["params"], shared, strict=True)]

        with fedjax.for_each_client_backend("jit"):
            train = fedjax.for_each_client(begin, step, end)

        def round() -> Updates:
            updates = [update for _, update in train(start, clients)]
            return [
                dict(
                    zip(
                        self.params,
                        (torch.from_numpy(np.array(value)) for value in update),
                        strict=True,
                    )
                )
                for update in updates
            ]

        return round


def _load(net: nn.Module, params: Params) -> None:
    with torch.no_grad():
        for own, value in zip(net.parameters(), params.values(), strict=True):
            own.copy_(value)


def difference(ours: Updates, reference: Updates) -> float:
    """Return the greatest difference of a weight; of the mean over clients, where there is but the
    clients' sum.
    """
    if len(ours) != len(reference):
        count = len(reference)
        reference = [
            {
                name: torch.stack([one[name] for one in reference]).sum(0) / count
                for name in reference[0]
            }
        ]
        ours = [{name: value / count for name, value in ours[0].items()}]
    return max(
        float((mine[name] - other).abs().max())
        for mine, one in zip(ours, reference, strict=True)
        for name, other in one.items()
    )


@dataclass(frozen=True)
class Measured:
    """One way of one case: seconds of its rounds, those of the plain rounds before each, and its
    error.
    """

    seconds: Sequence[float]
    plain: Sequence[float]
    error: float

    @property
    def ratio(self) -> float:
        """How many times as fast as the plain loop: the median of the pairs."""
        return statistics.median(self.ratios)

    @property
    def ratios(self) -> list[float]:
        """One a pair of rounds."""
        return [plain / own for plain, own in zip(self.plain, self.seconds, strict=True)]

    def __str__(self) -> str:
        least, greatest = min(self.ratios), max(self.ratios)
        return f"{self.ratio:.2f}x ({least:.2f}-{greatest:.2f})"


def seconds(way: Way, clock: Callable[[], float]) -> float:
    """Return how long a round takes."""
    started = clock()
    way()
    return clock() - started


def measure(
    case: Case, repeats: int, clock: Callable[[], float]
) -> tuple[Federation, dict[str, Measured]]:
    """Check and time every way of a case, its plain rounds and those of each way in turn."""
    federation = Federation(case)
    plain = federation.plain()
    ways: dict[str, Way] = {
        "one": federation.ours("one-at-a-time"),
        "batched": federation.ours("batched"),
    }
    ways["auto"] = federation.ours("auto")
    if SimulatedBackend is not None:
        ways["pfl"] = federation.pfl()
    if fedjax is not None:
        ways["fedjax"] = federation.fedjax()
    reference = plain()
    errors = {name: difference(way(), reference) for name, way in ways.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            times[name].append((seconds(plain, clock), seconds(way, clock)))
    return federation, {
        name: Measured([own for _, own in pairs], [base for base, _ in pairs], errors[name])
        for name, pairs in times.items()
    }


def row(case: Case, chosen: str, measured: Mapping[str, Measured]) -> list[str]:
    """Return a line of the table."""
    base = statistics.median(value for one in measured.values() for value in one.plain)
    shown = ("pfl", "fedjax", "one", "batched", "auto")
    cells = [str(measured[name]) if name in measured else "" for name in shown]
    cells[:2] = [cell or "not installed" for cell in cells[:2]]
    cells[4] += f" {chosen}"
    error = max(one.error for one in measured.values())
    return [case.name, f"{base * 1e3:.1f} ms", *cells, f">= {case.target:g}x", f"{error:.0e}"]


HEADER = (
    "clients x batch x steps, widths",
    "plain loop",
    "pfl",
    "FedJAX",
    "one at a time",
    "batched",
    "auto",
    "auto must reach",
    "greatest error",
)


def complaints(case: Case, measured: Mapping[str, Measured]) -> list[str]:
    """Return what is wrong: a missed target, or weights that differ."""
    found = []
    for name, one in measured.items():
        if not one.error <= TOLERANCE:  # NaN too
            found.append(
                f"WRONG: {case.name}: {name} ends {one.error:.1e} from the plain loop, not within "
                f"{TOLERANCE}"
            )
    if measured["auto"].ratio < case.target:
        found.append(
            f"SLOW: {case.name}: auto is {measured['auto']} the plain loop, not {case.target:g}x"
        )
    return found


def markdown(rows: Sequence[Sequence[str]], note: str) -> str:
    """Return the table."""
    lines = [HEADER, ["---"] * len(HEADER), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + f"\n\n{note}\n"


def main() -> int:
    """Measure, print and say whether all is well."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7, help="pairs of rounds for each way [7]")
    parser.add_argument("--cases", help="which cases to run, counted from 1: 1,4")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there too")
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: processor time, for a machine with other work",
    )
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="threads of torch [all cores]"
    )
    parser.add_argument(
        "--smallest", action="store_true", help="made as small as can be: to see that it runs"
    )
    args = parser.parse_args()
    cases, args.repeats = (SMALLEST, 1) if args.smallest else (CASES, args.repeats)
    if args.repeats < 1:
        parser.error("--repeats must be at least 1")
    torch.set_num_threads(args.threads)
    clock = time.perf_counter if args.clock == "wall" else time.process_time
    logging.getLogger("pfl").setLevel(logging.ERROR)
    if args.threads == 1:  # read when JAX computes first
        os.environ["XLA_FLAGS"] = (
            "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        )
    numbers = (
        [int(text) for text in args.cases.split(",")] if args.cases else range(1, len(cases) + 1)
    )
    if not set(numbers) <= set(range(1, len(cases) + 1)):
        parser.error(f"--cases are numbers from 1 to {len(cases)}")
    rows, wrong = [], []
    for number in numbers:
        case = cases[number - 1]
        federation, measured = measure(case, args.repeats, clock)
        rows.append(row(case, federation.chosen, measured))
        wrong += complaints(case, measured)
        print("  ".join(rows[-1]), flush=True)
    note = (
        f"{os.cpu_count()} cores, {args.threads} thread(s), torch "
        f"{torch.__version__.split('+')[0]}; {args.clock} time, medians of {args.repeats} ratios "
        "to the plain loop (least-greatest)."
    )
    table = markdown(rows, note)
    print(f"\n{table}")
    if args.markdown:
        args.markdown.write_text(table, encoding="utf-8")
    for text in wrong:
        print(text, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
