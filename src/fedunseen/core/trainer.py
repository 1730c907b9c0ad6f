"""The trainer: runs a method's phases on clients' data, one client at a time or all clients of a
round at once.

Both ways draw the same batches and take the same steps, so they agree to float tolerance; which one
runs is a matter of speed alone (:func:`batching_pays`). Batched, the parameters of K clients are
stacked to (K, ...) and the gradient function is mapped over them with ``torch.func.vmap``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.errors import ArgumentError
from fedunseen.core.parameters import Params, size_in_bytes, stack, unstack
from fedunseen.core.phases import Batch, Context, GradientFunction, Loss, Phase, Plan, Step, Terms
from fedunseen.core.samples import Inputs, gather

AUGMENT = "augment"
"""The extra of a plan that holds the random numbers of augmentation."""

T = TypeVar("T")
Augment = Callable[[Tensor, Tensor], Tensor]
Objective = Callable[[Loss], Loss]
Correction = Callable[[GradientFunction], GradientFunction]


def unchanged(loss: Loss) -> Loss:
    """Return the loss as it is."""
    return loss


@dataclass(frozen=True, eq=False)
class Task:
    """One client's local update: where it starts, what it has, what it does."""

    params: Params  # to start from; not changed
    samples: NDArray[np.int64]  # (n,) positions in the trainer's inputs
    plans: Mapping[
        str, Plan
    ]  # by phase; phases that take turns on the same batches share the plan named ""
    context: Context  # what only this client's loss knows
    extras: Params  # what the strategy gave this client


@dataclass(frozen=True, eq=False)
class LocalResult:
    """What a local update ends with."""

    params: Params  # they may be views of a whole round's: clone what is kept for longer
    terms: dict[str, float] = field(default_factory=dict)  # means over the steps
    steps: int = 0
    step_lengths: dict[str, float] = field(
        default_factory=dict
    )  # how far a constant gradient of one moves a parameter
    notes: dict[str, float] = field(default_factory=dict)


def batching_pays(clients: int, batch_size: int, multiply_adds: int, device: torch.device) -> bool:
    """Say whether it is faster to train the clients of a round as one batch than one at a time.

    On a CPU both take the same time at about 30 million multiply-adds a step
    (``benchmarks/speed/trainer.py``).
    """
    if clients < 2:
        return False
    return device.type != "cpu" or batch_size * multiply_adds <= 30_000_000


def chunk_size(task: Task, context: Context, memory: int, sample: int = 1) -> int:
    """Return how many clients fit in ``memory`` bytes: parameters, gradients, optimiser state and
    temporaries.

    Features are as wide as a parameter's last dimension or ``sample``; scores, as something in the
    shared ``context``.
    """
    places: int = max(plan.index.shape[1] for plan in task.plans.values())
    features, scores = (
        max((int(v.shape[-1]) for v in of.values() if v.ndim), default=1)
        for of in (task.params, context)
    )
    features = max(features, sample)
    client = 8 * size_in_bytes(task.params) + 4 * places * (8 * features + 32 * scores)
    return max(1, memory // client)


@dataclass(frozen=True, eq=False)
class Trainer:
    """Runs local updates."""

    phases: Sequence[Phase]
    inputs: Inputs
    labels: Tensor
    context: Context
    correct: Correction
    objective: Objective = unchanged
    augment: Augment | None = (
        None  # changes inputs by what the plans' extra AUGMENT has drawn for each
    )

    def plain(self) -> "Trainer":
        """Return the trainer without what a subclass changes of its losses."""
        return self

    def calibrated(self, task: Task) -> Task:
        """Return the task with what a subclass takes from the client's own samples."""
        return task

    def train(self, task: Task) -> LocalResult:
        """Train one client."""
        params = {name: value.detach().clone() for name, value in task.params.items()}
        context = {**self.context, **task.context}

        def batch_of(plan: Plan, samples: Tensor, step: int) -> dict[str, Tensor]:
            keep = plan.weight[step] > 0  # alone, a short batch is simply short
            chosen = samples[torch.from_numpy(plan.index[step][keep]).to(samples.device)]
            drawn = plan.draws(step) if plan.draws else {}
            extras = {name: value[step] for name, value in plan.extras.items()} | dict(drawn)
            kept = {name: self._tensor(value[keep]) for name, value in extras.items()}
            return self._batch(chosen, self._tensor(plan.weight[step][keep]), kept)

        samples = torch.from_numpy(task.samples).to(self.inputs.device)
        log = _Log(1)
        steps = 0
        for name, phases in self._turns():
            plan = task.plans[name]
            run = [
                _Running(p, params, self.correct(_by_autograd(self._objective(p)))) for p in phases
            ]
            for running, batch in _in_turn(run, plan.steps, partial(batch_of, plan, samples)):
                fixed = {k: v for k, v in params.items() if k not in running.group}
                grads, terms = running.gradient(
                    running.group, Step(batch, context, task.extras, fixed)
                )
                running.apply(grads)
                log.add(terms)
            steps += plan.steps
        return LocalResult(params, log.means()[0], steps, self._step_lengths(task))

    def together(self, tasks: Sequence[Task]) -> list[LocalResult]:
        """Train several clients at once. Clients with fewer batches rest while the others
        continue.
        """
        # The busiest clients come first, so that those still training are always the front of the
        # stack.
        order = sorted(
            range(len(tasks)), key=lambda i: -sum(plan.steps for plan in tasks[i].plans.values())
        )
        chosen = [tasks[i] for i in order]
        params = stack([task.params for task in chosen])
        client_context, client_dims = _share([task.context for task in chosen])
        extras, extras_dims = _share([task.extras for task in chosen])
        context = {**self.context, **client_context}
        context_dims: dict[str, int | None] = {**dict.fromkeys(self.context), **client_dims}
        log = _Log(len(chosen))
        total = np.zeros(len(chosen), dtype=np.int64)
        for name, phases in self._turns():
            plans = [task.plans[name] for task in chosen]
            steps = np.array([plan.steps for plan in plans])
            if (np.diff(steps) > 0).any():
                raise ValueError("the plans of a round's phases must rank its clients alike")
            if not steps.any():
                continue
            total += steps
            run = [
                _Running(p, params, self.correct(_by_transform(self._objective(p)))) for p in phases
            ]
            batches = self._stacked(plans, [task.samples for task in chosen])
            for running, (active, batch) in _in_turn(run, int(steps.max()), batches):
                group = {k: v[active] for k, v in running.group.items()}
                fixed = {k: v[active] for k, v in params.items() if k not in running.group}
                seen = Step(
                    batch,
                    _front(context, context_dims, active),
                    _front(extras, extras_dims, active),
                    fixed,
                )
                dims = Step._make(
                    (dict.fromkeys(batch, 0), context_dims, extras_dims, dict.fromkeys(fixed, 0))
                )
                grads, terms = torch.func.vmap(running.gradient, in_dims=(0, dims))(group, seen)
                running.apply(grads, active)
                log.add(terms, active)
                del grads, terms  # so that the next ones take their place in the processor's caches
        results: dict[int, LocalResult] = {}
        means = log.means()
        lengths: dict[
            tuple[int, ...], dict[str, float]
        ] = {}  # clients with as many steps share theirs
        for place, i in enumerate(order):
            steps_of_each = tuple(plan.steps for plan in tasks[i].plans.values())
            if steps_of_each not in lengths:
                lengths[steps_of_each] = self._step_lengths(tasks[i])
            results[i] = LocalResult(
                unstack(params, place), means[place], int(total[place]), lengths[steps_of_each]
            )
        return [results[i] for i in range(len(tasks))]

    def _stacked(
        self, plans: Sequence[Plan], samples: Sequence[NDArray[np.int64]]
    ) -> Callable[[int], tuple[slice, dict[str, Tensor]]]:
        """Return a function that gives a step's clients, the front of the stack, and their
        batch.
        """
        steps = np.array([plan.steps for plan in plans])
        rows = _padded(
            [
                rows_of_client[plan.index]
                for plan, rows_of_client in zip(plans, samples, strict=True)
            ]
        )
        weights = _padded([plan.weight for plan in plans])
        # What was drawn for each place must stay in place; otherwise the places up to the last one
        # in use will do.
        used = np.flatnonzero(weights.any((0, 1)))
        fixed = any(plan.extras or plan.draws for plan in plans)
        width = weights.shape[2] if fixed else 1 + int(used[-1]) if len(used) else 0
        index = self._tensor(rows[..., :width])
        weight = self._tensor(weights[..., :width])
        plan_extras = {
            k: self._tensor(_padded([plan.extras[k] for plan in plans])) for k in plans[0].extras
        }

        def batch_of(step: int) -> tuple[slice, dict[str, Tensor]]:
            active = slice(0, int((steps > step).sum()))
            extra = {k: value[step, active] for k, value in plan_extras.items()}
            drawn = [plan.draws(step) for plan in plans[active] if plan.draws]
            for name in drawn[0] if drawn else ():
                extra[name] = self._tensor(np.stack([item[name] for item in drawn]))
            return active, self._batch(index[step, active], weight[step, active], extra)

        return batch_of

    def _batch(self, rows: Tensor, weights: Tensor, extras: dict[str, Tensor]) -> dict[str, Tensor]:
        """Gather samples (..., batch); their inputs are changed at random where the plan has drawn
        for that.
        """
        inputs = gather(self.inputs, rows)
        if self.augment is not None and AUGMENT in extras:
            inputs = self.augment(inputs, extras.pop(AUGMENT))
        return {"inputs": inputs, "labels": gather(self.labels, rows), "weights": weights, **extras}

    def _objective(self, phase: Phase) -> Loss:
        loss = _checked(phase.loss)
        return self.objective(loss) if phase.contrasted else loss

    def _step_lengths(self, task: Task) -> dict[str, float]:
        lengths: dict[str, float] = {}
        for plan, phases in self._turns():
            for phase in phases:
                turns = _rows_of_turns(phases, task.plans[plan].steps)
                length = phase.optimiser.step_length(
                    sum(len(rows[-phase.repeats :]) for rows in turns)
                )
                for name in filter(phase.owns, task.params):
                    lengths[name] = lengths.get(name, 0.0) + length
        return lengths

    def _turns(self) -> list[tuple[str, list[Phase]]]:
        """Group the phases: each that comes before the round by itself, then the others in turn on
        each batch.
        """
        before = [(phase.name, [phase]) for phase in self.phases if phase.before_round]
        return [*before, ("", [phase for phase in self.phases if not phase.before_round])]

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.inputs.device)


class _Running:
    """A phase at work: its part of the parameters (views, changed in place) and its optimiser's
    state.
    """

    def __init__(self, phase: Phase, params: Params, gradient: GradientFunction) -> None:
        self.phase = phase
        self.gradient = gradient
        self.group = {name: value for name, value in params.items() if phase.owns(name)}
        self.state = phase.optimiser.init(self.group)
        self.steps = 0

    def apply(self, grads: Params, active: slice | None = None) -> None:
        """Take one step with the gradients; batched, only the clients in ``active`` move."""
        self.steps += 1
        params = list(self.group.values())
        state = self.state
        if active is not None:
            params = [value[active] for value in params]
            state = [[value[active] for value in kind] for kind in state]
        self.phase.optimiser.update(params, [grads[name] for name in self.group], state, self.steps)


def _in_turn(
    run: Sequence[_Running], steps: int, batch_of: Callable[[int], T]
) -> Iterator[tuple[_Running, T]]:
    """Yield each phase with each of its batches, in the order of training."""
    for rows in _rows_of_turns([running.phase for running in run], steps):
        batches = {row: batch_of(row) for row in rows}
        for running in run:
            for row in rows[-running.phase.repeats :]:
                yield running, batches[row]


class _Log:
    """Means of loss terms for each of some clients, summed on the device so that no step waits."""

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, Tensor] = {}

    def add(self, terms: Terms, active: slice = slice(None)) -> None:
        for name, value in terms.items():
            if name not in self.sums:
                self.sums[name], self.counts[name] = torch.zeros(
                    (2, self.clients), device=value.device
                )
            self.sums[name][active] += value
            self.counts[name][active] += 1

    def means(self) -> list[dict[str, float]]:
        columns = {name: (total / self.counts[name]).tolist() for name, total in self.sums.items()}
        return [
            {name: column[place] for name, column in columns.items()}
            for place in range(self.clients)
        ]


def _checked(loss: Loss) -> Loss:
    """Return the loss, which refuses to return something else than a scalar and its terms: it may
    be another's.
    """

    def call(params: Params, batch: Batch, context: Context) -> tuple[Tensor, Terms]:
        returned: Any = loss(params, batch, context)
        match returned:
            case (Tensor(ndim=0), Mapping() as terms) if all(
                isinstance(term, Tensor) for term in terms.values()
            ):
                return returned  # type: ignore[no-any-return]
        code = getattr(getattr(loss, "__func__", loss), "__code__", None)
        place = f"{code.co_filename}, line {code.co_firstlineno}: " if code else ""
        raise ArgumentError(
            f"{place}a loss returns (loss, terms), a scalar tensor and a mapping of name -> tensor"
        )

    return call


def _by_autograd(loss: Loss) -> GradientFunction:
    """Differentiate with the ordinary tape: the least overhead for one client."""

    def gradient(params: Params, step: Step) -> tuple[Params, Terms]:
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
        value, terms = loss({**step.fixed, **leaves}, step.batch, {**step.context, **step.extras})
        grads = torch.autograd.grad(
            value, list(leaves.values()), materialize_grads=True, allow_unused=True
        )
        return dict(zip(leaves, grads, strict=True)), {
            name: term.detach() for name, term in _logged(terms).items()
        }

    return gradient


def _by_transform(loss: Loss) -> GradientFunction:
    """Differentiate with ``torch.func``, which ``vmap`` can map over clients."""

    def of_group(params: Params, step: Step) -> tuple[Tensor, Terms]:
        value, terms = loss({**step.fixed, **params}, step.batch, {**step.context, **step.extras})
        return value, _logged(terms)

    gradient: GradientFunction = torch.func.grad(of_group, has_aux=True)
    return gradient


def _logged(terms: Terms) -> Terms:
    return {name: term for name, term in terms.items() if name != "representation"}


def _rows_of_turns(phases: Sequence[Phase], steps: int) -> list[range]:
    """Cut a plan's rows into the turns of its phases: as many rows as the phase with the most
    repeats takes.
    """
    rows = max([1, *(phase.repeats for phase in phases)])
    return [range(start, min(start + rows, steps)) for start in range(0, steps, rows)]


def _share(many: Sequence[Params]) -> tuple[Params, dict[str, int | None]]:
    """Stack what differs between clients; leave alone what is the same object for all. Returns
    vmap's in_dims too.
    """
    values: Params = {}
    dims: dict[str, int | None] = {}
    for name, first in many[0].items():
        is_shared = all(item[name] is first for item in many)
        values[name] = first if is_shared else torch.stack([item[name] for item in many])
        dims[name] = None if is_shared else 0
    return values, dims


def _front(values: Params, dims: Mapping[str, int | None], active: slice) -> Params:
    """Return what clients at the front of the stack share, and their parts of what they do not."""
    return {name: value if dims[name] is None else value[active] for name, value in values.items()}


def _padded(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Stack arrays (steps, ...) of clients to (steps, clients, ...), zeros where a client rests or
    has fewer places.
    """
    steps, *shape = (max(sizes) for sizes in zip(*(array.shape for array in arrays), strict=True))
    out = np.zeros((steps, len(arrays), *shape), dtype=arrays[0].dtype)
    for k, array in enumerate(arrays):
        out[:, k][tuple(map(slice, array.shape))] = array
    return out
