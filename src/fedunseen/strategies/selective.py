"""Selective module aggregation (Sun et al. 2024, FZSL section 3.2, Eqs. 4 and 5): only some
parameters travel.
"""

import fnmatch
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace

from fedunseen.core.errors import ExperimentError
from fedunseen.core.parameters import Params
from fedunseen.core.phases import GradientFunction, Phase, Step, Terms
from fedunseen.core.trainer import LocalResult
from fedunseen.strategies.base import Instruction, Strategy
from fedunseen.strategies.pipeline import Correct, Filter

HEAD = "head"
"""The phase of FedRep that trains what stays with the client."""


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Say whether a parameter's name matches one of the patterns (``fnmatch``)."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def travelling(
    names: Sequence[str], shared: Sequence[str], private: Sequence[str] = ()
) -> set[str]:
    """Return the parameters that travel."""
    free = [name for name in names if not matches(name, private)]
    modules = ", ".join(sorted({name.split(".")[0] for name in free}))
    for pattern in shared:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in free):
            raise ExperimentError(
                f"strategy.shared: {pattern!r} matches no parameter that could travel: "
                f"write a module and a star, for example {free[0].split('.')[0] + '.*'!r} (there "
                f"are: {modules})"
            )
    chosen = {name for name in free if matches(name, shared)}
    if len(chosen) == len(free) and "*" not in shared:
        raise ExperimentError(
            f"strategy.shared: {list(shared)} matches every parameter, and the clients keep none: "
            f"leave it out, or name fewer modules (there are: {modules})"
        )
    return chosen


def corrected_in_part(
    gradient: GradientFunction,
    correct: Callable[[GradientFunction], GradientFunction],
    kept: Container[str],
) -> GradientFunction:
    """Correct the gradient by some parameters only; leave that by those in ``kept`` as it is."""

    def split(params: Params, step: Step) -> tuple[Params, Terms]:
        rest = {name: value for name, value in params.items() if name in kept}
        if len(rest) == len(params):
            return gradient(params, step)
        of_rest: Params = {}

        def of_part(part: Params, step: Step) -> tuple[Params, Terms]:
            grads, terms = gradient({**part, **rest}, step)
            of_rest.update({name: grads[name] for name in rest})
            return {name: grads[name] for name in part}, terms

        part = {name: value for name, value in params.items() if name not in kept}
        grads, terms = correct(of_part)(part, step)
        return {**grads, **of_rest}, terms

    return split


def in_turn(
    phases: Sequence[Phase], shared: Sequence[str], private: Sequence[str] = ()
) -> list[Phase]:
    """Let a client train what stays with it first, and then what travels: FedRep (Collins et al.
    2021, Algorithm 1).
    """
    if len(phases) != 1:
        raise ExperimentError(
            "strategy.head_epochs trains what stays and what travels in turn, and this method's "
            "phases have an order of their own: leave it out, or choose a method with one loss, "
            "for example fedzsl"
        )

    def travels(name: str) -> bool:
        return matches(name, shared) and not matches(name, private)

    (phase,) = phases
    head = replace(phase, name=HEAD, before_round=True, among=lambda name: not travels(name))
    return [head, replace(phase, among=travels)]


class Selective(Filter):
    """Keeps some of the parameters at the clients: the strategy sees nothing of them."""

    name = "own"

    def __init__(self, initial: Params, scores: bool = False) -> None:
        self.initial = initial
        self.own_models = scores

    def recall(self, instruction: Instruction, client_state: Params, round: int) -> Instruction:
        """Add the client's own parameters (Eq. 5)."""
        return replace(instruction, client_params=client_state or self.initial)

    def correct(self, correct: Correct) -> Correct:
        """Correct the gradient by what travels, and leave that by the rest as it is."""
        return lambda gradient: corrected_in_part(gradient, correct, self.initial)

    def narrow(self, instruction: Instruction, result: LocalResult) -> LocalResult:
        """Leave out what stays with the client."""
        return replace(
            result,
            params={name: result.params[name] for name in instruction.params},
            step_lengths={
                n: length for n, length in result.step_lengths.items() if n in instruction.params
            },
        )

    def remember(self, instruction: Instruction, result: LocalResult) -> Params:
        """Keep what does not travel."""
        return {
            name: result.params[name].clone() for name in self.initial
        }  # may be views of a whole round's


def selective(
    strategy: Strategy, private: Sequence[str], params: Params, training_only: Sequence[str] = ()
) -> tuple[list[Selective], Params]:
    """Return the filter that keeps parameters at the clients, if any stay there, and the parameters
    that travel.
    """
    if not strategy.merges:
        return [], params
    chosen = travelling(list(params), strategy.settings.shared, private)
    stays = {key: value for key, value in params.items() if key not in chosen}
    if not stays:
        return [], params
    scores = bool(kept_for_scoring(params, chosen, (*private, *training_only)))
    return [Selective(stays, scores)], {key: params[key] for key in params if key in chosen}


def kept_for_scoring(
    names: Iterable[str], travel: Container[str], without: Sequence[str]
) -> list[str]:
    """Return the parameters that stay with the clients although scoring needs them."""
    return [name for name in names if name not in travel and not matches(name, without)]
