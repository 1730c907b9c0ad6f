"""A client's round: what any engine calls where a client's data are. The client is honest."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.confidence.own_folds import own_counts
from fedunseen.core.parameters import Params, to_device
from fedunseen.core.phases import GradientFunction, Loss, Plan
from fedunseen.core.random import stream
from fedunseen.core.samples import CodedRows, Inputs, ScaledSamples, first_of_equal
from fedunseen.core.sizes import BoundedDraws
from fedunseen.core.small_cells import left_out_sentence
from fedunseen.core.trainer import AUGMENT, LocalResult, Task, Trainer, batching_pays, chunk_size
from fedunseen.encoders.images import DRAWS, Augmentation, augment
from fedunseen.methods import Method
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.methods.closed_form.gaussian import Gaussian
from fedunseen.methods.closed_form.soft_statistics import (
    LEVELS,
    Scorer,
    most_probable,
    soft_statistics,
    without_small,
)
from fedunseen.methods.closed_form.statistics import fits
from fedunseen.methods.closed_form.unlabelled import features_of, received
from fedunseen.plans import StatisticsPlan
from fedunseen.statistics import Statistics
from fedunseen.strategies import Instruction, Reply, Strategy
from fedunseen.strategies.selective import HEAD, corrected_in_part, in_turn

NOTHING = Plan(
    np.zeros((0, 1), dtype=np.int64), np.zeros((0, 1), dtype=np.float32)
)  # of a phase that has had its turn


@dataclass(frozen=True, eq=False)
class Work:
    """One client's part of a round: its instruction and its state."""

    client: int
    instruction: Instruction
    client_state: Params


@dataclass(frozen=True)
class Execution:
    """How clients train.

    Attributes:
        mode: ``auto``, ``batched`` or ``one-at-a-time``.
        memory: bytes that a batch of clients may take.
        augmentations: random changes of training samples, which then have to be images (N,
            channels, height, width).
    """

    mode: str = "auto"
    memory: int = 2**28
    augmentations: Sequence[Augmentation] = ()


class Worker:
    """Does rounds for the clients whose data this process holds: one in a deployment, all of them
    in a simulation.

    Args:
        method: what to learn.
        strategy: how the local steps are corrected and what is sent back.
        inputs: (N, ...) scaled samples, or images, on the device that trains or to be sent there.
        labels: (N,) their class ids.
        samples: client -> (n,) positions of its samples.
        seed: the run's seed; batches depend on it, the round and the client alone.
        execution: in which way, and with which memory.
    """

    def __init__(
        self,
        method: Method,
        strategy: Strategy,
        inputs: Inputs,
        labels: Tensor,
        samples: Sequence[NDArray[np.int64]],
        seed: int,
        execution: Execution = Execution(),
    ) -> None:
        self.method = method
        self.strategy = strategy
        self.samples = samples
        self.seed = seed
        self.mode = execution.mode
        self.memory = execution.memory
        self.device = inputs.device
        self.known_sums: dict[
            int, tuple[NDArray[np.int64], Statistics]
        ] = {}  # of a client's samples, in closed form
        self.keeps_sums = False  # for a federation with more samples
        self.held: dict[int, NDArray[np.int64]] = {}  # all samples of clients that were restricted
        self.host_labels = labels.cpu().numpy()
        self.classes = [np.unique(self.host_labels[rows]) for rows in samples]
        context = to_device(method.context(), self.device)
        self.phases = method.phases()
        if strategy.settings.head_epochs is not None:
            self.phases = in_turn(self.phases, strategy.settings.shared, method.private)

        def objective(loss: Loss) -> Loss:
            return strategy.objective(loss, method.contrast)

        def change(images: Tensor, draws: Tensor) -> Tensor:
            return augment(images, draws, execution.augmentations)

        # What a client has for one round alone is not a strategy's business.
        fresh = frozenset(
            method.round_parameters(BoundedDraws(np.random.default_rng(0).bit_generator))
        )

        def correct(gradient: GradientFunction) -> GradientFunction:
            return (
                corrected_in_part(gradient, strategy.correct, fresh)
                if fresh
                else strategy.correct(gradient)
            )

        self.augments = bool(execution.augmentations)
        changing = change if self.augments else None
        self.trainer = Trainer(self.phases, inputs, labels, context, correct, objective, changing)

    def restrict(self, client: int, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Leave a client only those of its samples that are among ``samples``, and return them."""
        self.held[client] = self.samples[client]
        restricted = [
            np.intersect1d(rows, samples) if k == client else rows
            for k, rows in enumerate(self.samples)
        ]
        self.samples = restricted
        self.classes = [np.unique(self.host_labels[rows]) for rows in restricted]
        return restricted[client]

    def left_out_of(self, client: int) -> str:
        """Return the sentence about classes that a client's last sums lack for their few samples;
        "" if none.
        """
        return ""

    def round(self, works: Sequence[Work], round: int) -> Iterator[tuple[Reply, Params]]:
        """Do a round for several clients: each one's reply, and its state for its next round, in
        the order given.

        A reply is made when it is asked for, so that memory need not hold all of them.
        """
        if not self.method.trained:
            for work in works:
                reply, kept = self.finish(work, self.sums(work))
                yield self.strategy.released(reply, round), kept
            return
        tasks = [self.task(work, round) for work in works]
        if not self._batched(tasks):
            for work, task in zip(works, tasks, strict=True):
                yield self.finish(work, self.trainer.train(task))
            return
        # A layer of a backbone has about a hundredth as many numbers as it takes multiplications to
        # make them.
        sample = max(
            self.trainer.inputs.shape[1:].numel(), self.method.backbone.multiply_adds() // 100
        )
        chunk = chunk_size(tasks[0], self.trainer.context, self.memory, sample)
        # Clients with alike numbers of batches share a chunk, so that few of them rest while others
        # train.
        order = sorted(range(len(tasks)), key=lambda i: -tasks[i].plans[""].steps)
        results: dict[int, LocalResult] = {}
        alike: dict[
            frozenset[str], list[int]
        ] = {}  # in its first round a client may have a phase that others lack
        for i in order:
            alike.setdefault(
                frozenset(n for n, plan in tasks[i].plans.items() if plan.steps), []
            ).append(i)
        for group in alike.values():
            for start in range(0, len(group), chunk):
                part = group[start : start + chunk]
                results |= dict(
                    zip(part, self.trainer.together([tasks[i] for i in part]), strict=True)
                )
        for i, work in enumerate(works):
            yield self.finish(work, results.pop(i))

    def _batched(self, tasks: Sequence[Task]) -> bool:
        if self.mode != "auto":
            return self.mode == "batched"
        if not self.method.batched:
            return False
        plans = [plan for task in tasks for plan in task.plans.values() if plan.steps]
        work = self.method.multiply_adds(tasks[0].params)
        largest = max(plan.index.shape[1] for plan in plans)
        if batching_pays(
            len(tasks), largest, work, self.device
        ):  # full batches would; counting takes its time
            return True
        largest = max(int((plan.weight > 0).sum(1).max()) for plan in plans)
        return batching_pays(len(tasks), largest, work, self.device)

    def task(self, work: Work, round: int) -> Task:
        """Return what a client trains in ``round``: the same whenever it is asked for."""
        labels = self.host_labels[self.samples[work.client]]
        before = {
            phase.name: phase.once and bool(work.client_state)
            for phase in self.phases
            if phase.before_round
        }
        epochs = self.strategy.settings.local_epochs
        plans = {
            name: self.method.plan(name, labels, epochs, self._draws(name, round, work.client))
            if not done
            else NOTHING
            for name, done in {**before, "": False}.items()
            if name != HEAD
        }
        if (passes := self.strategy.settings.head_epochs) is not None:
            plans[HEAD] = self.method.plan(
                "", labels, passes, self._draws(HEAD, round, work.client)
            )
        if self.augments:
            for name, plan in plans.items():
                draws = stream(self.seed, f"augmentation {name}", round, work.client).random(
                    (*plan.index.shape, DRAWS), dtype=np.float32
                )
                plans[name] = replace(plan, extras={**plan.extras, AUGMENT: draws})
        context = to_device(self.method.client_context(self.classes[work.client]), self.device)
        instruction = work.instruction
        params = instruction.params | instruction.client_params
        extras = instruction.extras | instruction.kept
        if (
            type(self.method).round_parameters is not Method.round_parameters
        ):  # a stream takes its time
            fresh = self.method.round_parameters(stream(self.seed, "fresh", round, work.client))
            like = next(iter(params.values()))
            params = params | {name: value.to(like) for name, value in fresh.items()}
        return Task(params, self.samples[work.client], plans, context, extras)

    def _draws(self, phase: str, round: int, client: int) -> np.random.Generator:
        """Return what a phase's batches are drawn from."""
        return stream(
            self.seed, "batches " if self.method.one_draw else f"batches {phase}", round, client
        )

    def sums(self, work: Work) -> LocalResult:
        """Return a client's statistics; what is known of a part of its samples is not summed
        again.
        """
        method = self.method
        samples = self.samples[work.client]
        assert isinstance(method, ClosedForm)  # it has no phases
        planned = StatisticsPlan(method)
        before, known = self.known_sums.pop(work.client, (samples[:0], None))
        if known is None or not (
            planned.exact and fits(known.params, method.space, method.quantization)
        ):
            before = samples[:0]
            known = None
        held = self.held.get(work.client)
        among = None if held is None or method.min_samples == 1 else self.read(held)
        new = samples[~np.isin(samples, before)]
        new_sums = Statistics(planned, method.statistics(*self.read(new), among))
        if known is not None:
            new_sums.merge(known)
        if self.keeps_sums:
            self.known_sums[work.client] = samples, new_sums
        return LocalResult(new_sums.params, {}, 1)

    def read(self, samples: NDArray[np.int64]) -> tuple[Tensor | CodedRows, Tensor]:
        """Return samples as statistics read them, and their labels."""
        rows = torch.from_numpy(samples).to(self.device)
        inputs = self.trainer.inputs
        client_inputs = (
            CodedRows(inputs, rows) if isinstance(inputs, ScaledSamples) else inputs[rows]
        )
        return client_inputs, self.trainer.labels[rows]

    def finish(self, work: Work, result: LocalResult) -> tuple[Reply, Params]:
        """Return a client's reply and its state for its next round, from what its training ended
        with.
        """
        initial_names = work.instruction.params.keys() | work.instruction.client_params.keys()
        if self.method.trained and len(initial_names) < len(
            result.params
        ):  # drop what lives for one round
            params = {name: result.params[name] for name in result.params if name in initial_names}
            lengths = {
                name: length
                for name, length in result.step_lengths.items()
                if name in initial_names
            }
            result = replace(result, params=params, step_lengths=lengths)
        update, client_state = self.strategy.finish(work.instruction, result, work.client_state)
        classes = len(self.classes[work.client])
        samples = len(self.samples[work.client])
        lengths = (
            result.step_lengths
        )  # one for many clients, so that a copy is made only where something is left out
        if not lengths.keys() <= work.instruction.params.keys():
            lengths = {
                name: length for name, length in lengths.items() if name in work.instruction.params
            }
        return Reply(
            work.client, update, classes, samples, result.terms, lengths, result.notes
        ), client_state


class SoftWorker(Worker):
    """Answers :class:`~fedunseen.methods.closed_form.unlabelled.SoftSums` for the clients whose
    data are here.
    """

    def __init__(self, pools: Sequence[NDArray[np.int64]], *arguments: Any) -> None:
        super().__init__(*arguments)
        self.pools = pools
        self.small: dict[int, dict[str, float]] = {}  # client -> class -> soft count
        self.as_summed: (
            Callable[[NDArray[np.int64], NDArray[np.int64]], tuple[ScaledSamples, str]] | None
        ) = None
        """Of samples and their classes: the samples as sums of these classes have them, and what
        the owner reads of that; None: as they are.
        """
        self.said: dict[int, str] = {}  # client -> that

    def sums(self, work: Work) -> LocalResult:
        """Return the soft statistics of a client's unlabelled samples."""
        assert isinstance(self.method, Gaussian)  # a rule's
        scores = received(self.method, work.instruction)
        rows = torch.from_numpy(self.pools[work.client])
        inputs = self.trainer.inputs
        few = self.method.min_samples
        if few == 1:
            sums = soft_statistics(scores, features_of(self.method, inputs[rows]))
            return LocalResult(sums, {}, 1)
        sorted_to = most_probable(scores, features_of(self.method, inputs[rows]))
        if self.as_summed is not None:
            inputs, self.said[work.client] = self.as_summed(rows.numpy(), sorted_to.numpy())
        sums, distinct = self._soft_sums(scores, inputs, rows, sorted_to)
        sums, small = without_small(sums, few, distinct)
        names = self.method.space.names
        self.small[work.client] = {names[place]: count for place, count in small.items()}
        return LocalResult(sums, {}, 1)

    def _soft_sums(
        self, scores: Scorer, inputs: Inputs, rows: Tensor, sorted_to: Tensor
    ) -> tuple[Params, Tensor]:
        """Return the sums of some samples that show no feature of few of a class, and the classes'
        counts of different samples, in units of 1 / ``LEVELS``.
        """
        pool = inputs[rows]
        assert isinstance(self.method, Gaussian)
        features = features_of(self.method, pool)
        clipped = None
        stages: list[Tensor] = []
        tabular = False
        same = pool.cpu().numpy()
        repeats = np.zeros((len(pool), 1), dtype=np.int64)
        if isinstance(inputs, ScaledSamples):
            clipped = inputs.clipped(rows)
            same = inputs.told_apart()[rows.numpy()]
            repeats[:, 0] = inputs.repeated(rows)
            stages = inputs.stages(rows)
            tabular = inputs.tabular
        first = torch.tensor(first_of_equal(same)).bool()
        counted = first
        if repeats.any():  # each counts in its class, as labeled samples do
            counted = torch.tensor(first_of_equal(np.concatenate([same, repeats], axis=1))).bool()
        few = self.method.min_samples
        sums = soft_statistics(scores, features, clipped, few, first, stages, tabular, sorted_to)
        distinct = torch.bincount(sorted_to[counted], minlength=len(scores.bias))
        return sums, LEVELS * distinct[scores.classes]

    def left_out_of(self, client: int) -> str:
        """Return the sentence about classes of small soft counts that a client's last sums lack."""
        assert isinstance(self.method, Gaussian)  # a rule's
        few = left_out_sentence(self.small.get(client, {}), self.method.min_samples)
        return "; ".join(filter(None, (few, self.said.get(client, ""))))


class AnsweringWorker(Worker):
    """Counts how sure models without some classes are of the samples of clients whose data are
    here.
    """

    def sums(self, work: Work) -> LocalResult:
        """Return the counts of answers about a client's samples."""
        assert isinstance(self.method, ClosedForm)  # no other one is asked
        inputs = self.trainer.inputs
        labels = self.trainer.labels
        rows = self.samples[work.client]
        question = work.instruction.params
        counts = own_counts(self.method, question, inputs, labels, rows, self.seed)
        return LocalResult(counts, {}, 1)
