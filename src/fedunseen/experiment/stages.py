"""The stages of a run, each a function of a setup that returns the setup of the next stage."""

import itertools
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from fedunseen.confidence.measured import measured
from fedunseen.core.errors import DataError, FedUnseenError
from fedunseen.core.files import replacing, write_tensors
from fedunseen.core.registry import find
from fedunseen.data import Benchmark, fit_semantics
from fedunseen.evaluation.misplaced import lit_tests, misplaced_files, most_alike_files
from fedunseen.experiment.assemble import resolve_defaults
from fedunseen.experiment.calibration_folds import offset_of_folds
from fedunseen.experiment.changed import adapted_numbers, test_share
from fedunseen.experiment.encoding import copy_weights
from fedunseen.experiment.held_out import held_out_of
from fedunseen.experiment.hooks import hooks
from fedunseen.experiment.manifest import clients_of, encoder_of, write_scaling
from fedunseen.experiment.measured_again import origin
from fedunseen.experiment.reasons import model_of, reason_tensors
from fedunseen.experiment.result.run import load_run
from fedunseen.experiment.rules import PresenceFacts, check
from fedunseen.experiment.run_model import with_confidence
from fedunseen.experiment.schema import Experiment
from fedunseen.experiment.setup import Setup
from fedunseen.experiment.space_versions import SpaceVersions
from fedunseen.experiment.suited_features import curved_boundaries
from fedunseen.federation import callbacks
from fedunseen.federation.engine import PartyStatus, Session
from fedunseen.federation.evaluator import Choice
from fedunseen.federation.federation import Federation
from fedunseen.federation.loop import Callback, Loop, fit
from fedunseen.federation.partition import NEVER
from fedunseen.federation.run_directory import Measured, RunDirectory, load_params
from fedunseen.methods.closed_form.unlabelled import Adaptation, SoftSums
from fedunseen.model import Calibration

Meet = Callable[[], AbstractContextManager[Session]]  # opens the link to parties elsewhere
Present = Callable[
    [Sequence[PartyStatus]], None
]  # is called with the clients before the first round


def connect(setup: Setup) -> None:
    """Let the rounds be those of the parties, wherever they are."""
    if setup.meeting is not None:
        setup.meeting.run = setup.directory.identity()  # parties keep the states of each run apart
        setup.meeting.folder = setup.directory.path / "secagg"
        setup.federation.engine.connect(setup.meeting)
        if setup.versions is not None:
            setup.versions.meeting = setup.meeting


@contextmanager
def met(setup: Setup, meet: Meet | None, present: Present | None) -> Iterator[Setup]:
    """Yield the setup with the link to its parties, if any; ``present`` is called with who the
    clients are.
    """
    show = present or (lambda members: None)
    if meet is not None:
        with meet() as meeting:
            show(meeting.parties)
            yield replace(setup, meeting=meeting)
        return
    show(clients_of(setup.federation))
    yield setup


def prepare(setup: Setup) -> Setup:
    """Return the setup with the benchmark to select on, if any, checked before anything is
    written.
    """
    experiment = setup.experiment
    benchmark = setup.whole
    if not experiment.task.evaluator.chooses_apart(experiment.evaluation):
        return setup
    try:
        apart = benchmark.for_selection(experiment.run.seed)
        for word, rows in (("validation", apart.test_unseen), ("other seen", apart.test_seen)):
            if not len(rows):  # of a part, as a coordinator has one
                raise DataError(
                    f"{benchmark.name} has no sample of its {word} classes to choose on: give the "
                    "coordinator some of its own, marked 'train'"
                )
        fit_semantics(apart.space, experiment.data.semantics)
        if not find("strategy", experiment.strategy.name).pools:
            check(PresenceFacts(experiment, setup.partition.restricted_to(apart.train)))
    except FedUnseenError as error:
        raise error.reworded(
            f"{error}; or choose nothing, with evaluation.selection = 'last'"
        ) from None
    return replace(setup, apart=apart)


def select(setup: Setup) -> Setup:
    """Choose on validation classes, where the task does so in runs apart; otherwise leave the
    choice to the rounds.
    """
    if setup.apart is None:
        evaluation = setup.experiment.evaluation
        method = type(setup.federation.method)
        return replace(setup, choice=setup.evaluator.choice(evaluation, method, setup.rounds))
    choice, chosen, folder = _choose(setup, setup.apart)
    setup = replace(setup, chosen_in=folder)
    if chosen["settings"]:
        before = setup.experiment
        now = resolve_defaults(setup.unresolved.with_overrides(chosen["settings"]), setup.whole)
        chosen["settings"] |= _followed(before, now)
        setup = replace(setup, experiment=now, rounds=now.strategy.rounds).assembled()
    return replace(setup, choice=choice, chosen=chosen)


def _choose(setup: Setup, benchmark: Benchmark) -> tuple[Choice, dict[str, Any], str]:
    """Run every combination of settings on the validation classes, and return what the best one
    chose, and its folder.
    """
    experiment = setup.unresolved
    grid = setup.unresolved.evaluation.choose
    candidates = [
        dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())
    ]
    task = experiment.task
    method = find("method", experiment.method.name)
    results: list[Mapping[str, Any]] = []
    resolved = [
        resolve_defaults(experiment.with_overrides(settings), setup.whole)
        if settings
        else setup.experiment
        for settings in candidates
    ]
    for i, candidate in enumerate(resolved):
        kind = find("method", candidate.method.name)
        method = kind if kind.zero_shot else method  # compare by what scores unseen classes, if any
        several = len(candidates) > 1
        which = f" {i + 1}/{len(candidates)}" if several else ""
        rounds = candidate.strategy.rounds
        choice = candidate.task.evaluator.choice(candidate.evaluation, kind, rounds, selecting=True)
        quiet = candidate.evaluation.model_copy(update={"choose": {}, "clients": False})
        result = setup.sub_run(
            f"selection/{i}" if several else "selection",
            (warm_start, train),
            experiment=candidate.model_copy(update={"evaluation": quiet}),
            benchmark=benchmark,
            partition=setup.partition.restricted_to(benchmark.train),
            rounds=rounds,
            choice=choice,
            label=f"choosing on validation classes{which}",
            selection=True,
        )
        results.append(result)
    orders = [task.evaluator.order(result, experiment.evaluation, method) for result in results]
    best = max(range(len(results)), key=lambda i: (*orders[i], -i))
    result = results[best]
    form = (
        {"method.form": result["form"]} if "form" in result else {}
    )  # whose scores the offset is for
    chosen: dict[str, Any] = {
        "settings": {**candidates[best], **form},
        "round": result["selected_round"],
        "factor": result["calibration_factor"],
        **{name: result[name] for name in ("rounds", "stopped", "offsets") if name in result},
        "validation": {name: result[name] for name in task.evaluator.accuracies},
    }
    if (folds := offset_of_folds(resolved[best], setup.whole, setup.partition)) is not None:
        chosen |= folds
    if len(candidates) > 1:
        chosen["tried"] = [
            {"settings": settings, **{name: accuracies[name] for name in task.evaluator.accuracies}}
            for settings, accuracies in zip(candidates, results, strict=True)
        ]
    folder = f"selection/{best}" if len(candidates) > 1 else "selection"
    return Choice(result["selected_round"], chosen["factor"]), chosen, folder


def _followed(before: Experiment, now: Experiment) -> dict[str, Any]:
    """Return what follows from the data otherwise than before, since settings have been chosen."""
    pairs = {
        "data.features": (before.data.features, now.data.features),
        "method.lr": tuple(getattr(experiment.method, "lr", None) for experiment in (before, now)),
    }
    return {key: new for key, (old, new) in pairs.items() if new != old and new is not None}


def warm_start(setup: Setup) -> Setup:
    """Set the first parameters to those of the closed form, where the method asks for it.

    The result then says what the closed form reaches on the test samples, and the bytes that a
    client sends for it.
    """
    experiment = setup.experiment
    federation = setup.federation
    if getattr(experiment.method, "start", "random") != "closed-form":
        return setup
    strategy = {"strategy.name": "fedavg", "strategy.fraction": 1.0, "strategy.stop_after": None}
    changes = {"method.name": "gaussian", "data.quantization": "none", **strategy, **QUIET}
    closed = experiment.with_overrides(changes)
    label = "beginning with the closed form"
    how = {
        "experiment": closed,
        "rounds": 1,
        "choice": Choice(1, 0.0),
        "label": label,
        "callbacks": (),
    }
    result = setup.sub_run("start", (train,), **how)
    model = load_params(setup.directory.path / "start" / "model.safetensors", federation.device)
    bias = model["bias"] - model["weight"] @ model["centre"]
    federation.first = federation.method.warm_start(federation.first, model["weight"], bias)
    if setup.nested:
        return setup
    start = {name: result[name] for name in (*setup.evaluator.accuracies, "bytes_up")}
    return replace(setup, result={**setup.result, "start": start})


QUIET = {"evaluation.selection": "last", "evaluation.clients": False, "evaluation.choose": {}}
"""Settings of a nested run: it chooses nothing and measures no client."""


class Grow(Callback):
    """Lets the class space grow: before a round it replaces the federation, the state and who
    measures.
    """

    def __init__(self, versions: SpaceVersions, evaluate: callbacks.Evaluate) -> None:
        self.versions = versions
        self.evaluate = evaluate

    def before_round(self, loop: Loop) -> None:
        """Go to the version of the next round."""
        loop.federation, loop.state = self.versions.before(loop.state)
        self.evaluate.task = self.versions.task

    def after_round(self, loop: Loop) -> None:
        """Add the version to the metrics."""
        loop.metrics["space"] = self.versions.version.line()


def train(setup: Setup) -> Setup:
    """Run the rounds, and return the setup with the final numbers."""
    connect(setup)
    directory = setup.directory
    directory.keep = setup.experiment.run.keep
    choice = setup.choice
    versions = setup.versions
    history = directory.metrics()
    checkpoint = directory.resumable(setup.federation.device, choice.round, len(history))
    federation = setup.federation
    task = setup.evaluator
    if versions is not None:
        federation, task = versions.at(checkpoint.round if checkpoint else 0)
    state = federation.start()
    if checkpoint is not None:
        state = directory.restored(checkpoint, state.params)
    history = directory.rewind(state.round, history)
    rounds = setup.rounds
    patience = setup.experiment.strategy.stop_after
    if choice.round is not None and (setup.callbacks or patience is not None):
        # no later round can be the one that is reported
        rounds = choice.round
        patience = None
    evaluate = callbacks.Evaluate(task, choice, every=1 if setup.callbacks else None)
    epochs = None if setup.nested else setup.experiment.strategy.personal_epochs
    personalize = callbacks.Personalize(directory, evaluate, epochs)
    stopping = (
        [callbacks.EarlyStop(patience, "on validation classes")] if patience is not None else []
    )
    after = [
        *stopping,
        *_callbacks(setup, evaluate),
        personalize,
        callbacks.ShowProgress(setup.progress, setup.label),
    ]
    stoppable = not setup.chosen
    loop = fit(federation, rounds, after, state=state, history=history, stoppable=stoppable)
    personal = {"personal": personalize.measured} if personalize.measured else {}
    result = {**setup.result, **_numbers(setup, loop, evaluate), **personal}
    setup = replace(setup, result=result, history=loop.history)
    if not setup.nested and "square" in loop.state.params:  # sums of a closed form
        setup = replace(setup, sums=loop.state.params)
    if versions is not None:
        setup = replace(setup, federation=versions.federation, evaluator=versions.task)
        setup = replace(setup, benchmark=versions.federation.benchmark)
    return setup


def _callbacks(setup: Setup, evaluate: callbacks.Evaluate) -> list[Callback]:
    """Return what a run does after a round, in the order in which the round becomes durable."""
    directory = setup.directory
    versions = setup.versions
    main = not setup.nested
    return [
        *([Grow(versions, evaluate)] if versions is not None else []),
        evaluate,
        *setup.callbacks,
        *(
            [callbacks.KeepForForgetting(directory)]
            if main and setup.experiment.run.forgettable
            else []
        ),
        callbacks.Record(directory, evaluate if main else None),
        callbacks.KeepBest(directory, setup.choice),
        callbacks.Checkpoint(directory),
    ]


def _numbers(setup: Setup, loop: Loop, evaluate: callbacks.Evaluate) -> dict[str, Any]:
    """Return what a run reports of its rounds."""
    lines = loop.history
    selected = setup.choice.selected(loop)
    stopped = {"round": len(lines), "of": loop.rounds, "why": loop.reason}
    return {
        **evaluate.task.numbers(lines, selected, setup.directory.model_path),
        **{
            name: lines[selected - 1][name]
            for name in ("sums_sha256", "clipped", "influence")
            if name in lines[selected - 1]
        },
        **({"epsilon": lines[-1]["privacy"]["epsilon"]} if "privacy" in lines[-1] else {}),
        **_traffic(loop.federation, lines),
        "rounds": len(lines),
        "selected_round": selected,
        **({"stopped": stopped} if len(lines) < loop.rounds else {}),
    }


def _traffic(federation: Federation, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean bytes of a client in a round, each module's number of parameters, and how
    many travel.
    """
    parts = sum(len(line["participants"]) + len(line.get("dropped", ())) for line in lines)
    modules = Counter[str]()
    for name, count in federation.sizes.items():
        modules[name.split(".")[0]] += count
    strategy = federation.strategy
    travel = federation.first if strategy.merges and not strategy.pools else {}
    return {
        **{
            direction: round(sum(line[direction] for line in lines) / max(parts, 1), 1)
            for direction in ("bytes_down", "bytes_up")
        },
        "parameters": dict(modules),
        "parameters_shared": sum(value.numel() for value in travel.values()),
    }


def adapt_unlabelled(setup: Setup) -> Setup:
    """Replace the model by the adapted one, where the experiment asks for it (``data.unlabelled``).

    The iterations are the rounds of a run inside this one, ``adapting``, over the same clients. The
    labeled model stays in ``labelled.safetensors``, so that a killed run continues.
    """
    if not getattr(setup.experiment.data, "unlabelled", False):
        return setup
    labelled = setup.directory.path / "labelled.safetensors"
    if not labelled.exists():
        with replacing(labelled) as temporary:
            shutil.copy2(setup.directory.model_path, temporary)
    before = load_params(labelled, setup.federation.device)
    offset = float(setup.result["calibration_factor"])
    rounds = Adaptation.iterations

    def start(inner: Setup) -> Setup:
        strategy = inner.federation.strategy
        assert isinstance(strategy, SoftSums)
        inner.federation.first = before
        strategy.offset = offset
        return inner

    experiment = setup.experiment.with_overrides({**QUIET, "data.unlabelled": "summed"})
    clients = len(setup.partition.clients)
    done = setup.sub_run(
        "adapting", (start, train), experiment=experiment, rounds=rounds,
        partition=replace(setup.partition, first=np.zeros(clients, np.int64), last=np.full(clients, NEVER)),
        choice=Choice(rounds, offset), label="adapting to unlabelled samples", callbacks=(),
    )  # fmt: skip
    inner = RunDirectory(setup.directory.path / "adapting")
    adapted = SoftSums.adapted(
        load_params(inner.model_path, setup.federation.device), inner.metrics()[-1]
    )
    write_tensors(setup.directory.model_path, adapted.params)
    pool = None if setup.partition.remote else setup.benchmark.features[setup.benchmark.unlabelled]
    federation = setup.federation
    space = setup.benchmark.space
    old, new = (federation.answers(params) for params in (before, adapted.params))
    own_offset = federation.method.own_offset(adapted.params)
    names = setup.evaluator.accuracies
    numbers = adapted_numbers(old, new, own_offset, space, adapted, offset, names)
    if pool is not None:
        numbers["adapted"]["test_share"] = test_share(pool, setup.benchmark)
    numbers["adapted"] |= {
        "rounds": rounds,
        **{direction: done[direction] for direction in ("bytes_down", "bytes_up")},
    }
    first = model_of(setup, before)
    adapted_offset = offset * adapted.offset_share
    if first.confidence is not None and pool is not None:
        changed = replace(first, params=adapted.params, calibration=Calibration(adapted_offset))
        sure = changed.no_surer_than(first, [pool]).confidence
        assert sure is not None
        setup = replace(setup, confidence=sure)
        tests = held_out_of(federation, adapted.params)
        numbers["confidence"] = measured(tests, sure, adapted_offset) | origin(setup.result)
    connect(setup)  # parties get the model as one of the whole run
    return replace(setup, result={**setup.result, **numbers}, model=adapted.params)


def report(setup: Setup) -> Setup:
    """Write the result and all that predictions and the report need; the result last."""
    directory = setup.directory
    experiment = setup.experiment
    federation = setup.federation
    result: dict[str, Any] = {
        **setup.result,
        "selection": experiment.evaluation.selection,
        "seed": experiment.run.seed,
        "seconds": round(time.perf_counter() - setup.started, 3),
        "run": str(directory.path),
    }
    result.pop("offsets", None)  # of other priors, where rounds are chosen on test samples
    if setup.chosen:
        # what other priors would choose is in the points of these priors
        chosen = {key: value for key, value in setup.chosen.items() if key != "offsets"}
        result["chosen_on_validation"] = chosen
        result |= {"stopped": setup.chosen["stopped"]} if "stopped" in setup.chosen else {}
    remarks = [
        remark for kind in hooks(experiment) for remark in kind.remarks(experiment, setup.benchmark)
    ]
    if remarks or setup.partition.remote:
        result["notes"] = remarks
    # The warnings of a coordinator go to the parties, who have the files.
    if not setup.partition.remote and setup.benchmark.files is not None:
        result |= misplaced_files(setup.benchmark) | most_alike_files(setup.benchmark)
    if not setup.partition.remote and (curved := curved_boundaries(experiment, setup.benchmark)):
        result["curved"] = curved
    setup.benchmark.space.save(directory.path / "classes.csv")
    encoder = encoder_of(experiment, setup.benchmark)
    copy_weights(encoder, experiment.data, experiment.encoder, directory.path)
    params = setup.model
    one_model = federation.strategy.one_model
    if params is None:
        params = load_params(directory.model_path, federation.device) if one_model else {}
    answers = setup.evaluator.summary(params, result)
    if "badly_lit" in result:
        result |= lit_tests(result, setup.benchmark, answers)
    model = model_of(setup, params)
    if model.confidence is not None and "labels" in answers:
        answers |= reason_tensors(model, setup.benchmark, answers, encoder)
    write_tensors(directory.path / "evaluation.safetensors", answers)
    measured = Measured(setup.manifest, setup.benchmark.space, answers, setup.history)
    if one_model:
        model.save(directory.model_path)
    else:
        write_scaling(federation.scaler, directory.path)
    params = with_confidence(params, setup.confidence)
    federation.engine.finish(directory.finish(result, measured), params)
    return replace(setup, result=result)


def finish_late(setup: Setup, meet: Meet | None) -> None:
    """Tell the parties, if any, that the run is over, where the coordinator was killed before it
    could.
    """
    if meet is None or not setup.experiment.deployed:
        return
    done = load_run(setup.directory.path)
    setup = replace(setup, experiment=done.experiment).assembled()
    if setup.versions is not None:
        setup = replace(setup, federation=setup.versions.at(NEVER)[0])
    with meet() as meeting:
        connect(replace(setup, meeting=meeting))
        sure = done.model.confidence if done.one_model else None
        setup.federation.engine.finish_late(done.result, with_confidence(done.params, sure))
