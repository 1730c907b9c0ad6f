"""``fedunseen attack``: what the gradients of an experiment give away, and what a backdoor does to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedunseen.cli.console import ExperimentName, Json, Overrides, overrides_of, say
from fedunseen.cli.console import chosen as read_experiment
from fedunseen.core.errors import ExperimentError, RunDirectoryError, unknown
from fedunseen.core.files import free_folder, parse_json
from fedunseen.core.toml import parse_toml

if TYPE_CHECKING:
    from torch import Tensor

    from fedunseen.experiment import Experiment
    from fedunseen.threats import Inversion

__all__ = ["attack_app", "examine"]

attack_app = typer.Typer(help="What the curious can find out, and what the malicious can do.", no_args_is_help=True)

METHODS = ("dlg", "cosine", "both")
SUMS = (1, 2, 3, 10)
UNMASKED = (
    "under masks the coordinator sees no single gradient, but sums: single ones are what it would see without masks"
)


@attack_app.command()
def leakage(
    experiment: ExperimentName,
    overrides: Overrides = None,
    images: Annotated[int, typer.Option(help="How many training samples are attacked.")] = 4,
    method: Annotated[str, typer.Option(help="Which search: dlg, cosine or both.")] = "both",
    steps: Annotated[
        int | None, typer.Option(help="Steps of each search: calls of L-BFGS (default 300) or of Adam (4800).")
    ] = None,
    sums: Annotated[
        str | None,
        typer.Option(
            help="Of how many parties the sums are that are attacked beside single updates: none, or numbers with "
            "commas (default: 1,2,3,10, as far as there are so many parties)."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The directory of the results (default: runs/leakage-NAME-seedN, or a new one).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Recover samples from their gradients: from a classifier that sees images, and from the experiment's method."""
    if images < 1:
        raise ExperimentError(f"--images {images}: attack at least one sample")
    added = _sums(sums)
    chosen = read_experiment(experiment, overrides)
    from fedunseen.core.registry import find
    from fedunseen.experiment.record import free_directory
    from fedunseen.strategies import Strategy

    attacks = _attacks(method, steps)
    out = out if out is not None else free_directory(chosen, "leakage-")
    free_folder(out)
    strategy = find("strategy", chosen.strategy.name)
    if any(getattr(strategy, part) is not getattr(Strategy, part) for part in ("correct", "objective")):
        say(f"note: what {chosen.strategy.name} adds to gradients is not played: they are those of fedavg")
    masked = chosen.privacy.aggregation == "masked"
    if masked:
        say(f"note: {UNMASKED}")
    facts, tensors = examine(chosen, images, attacks, say, added)
    if masked:
        facts["note"] = UNMASKED
    _write(out, facts, tensors)
    from fedunseen.report.leakage_page import conclusions

    say(*conclusions(facts), f"numbers: {out / 'leakage.json'}", f"report:  {out / 'leakage.html'}")
    if as_json:
        print(json.dumps(_summary(facts, out)), flush=True)


@attack_app.command()
def backdoor(
    experiment: ExperimentName,
    overrides: Overrides = None,
    defences: Annotated[
        str, typer.Option(help="Which defences, with commas: magnitude,norm-clip (default: all there are).")
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(help="The directory of the results (default: runs/backdoor-NAME-seedN, or a new one)."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the runs that --out holds; its defences stay in the table.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run an experiment honestly and attacked, without and with each defence."""
    chosen = attacked(experiment, overrides or [])
    from fedunseen.cli.progress import live_progress
    from fedunseen.core.files import write_json
    from fedunseen.experiment.record import free_directory
    from fedunseen.experiment.study import guards, study
    from fedunseen.report.backdoor_page import conclusions, write_backdoor_report

    wanted = [name.strip() for name in defences.split(",") if name.strip()]
    guards(wanted)  # what is wrong is said before the directory is looked at
    out = out if out is not None else free_directory(chosen, "backdoor-")
    if not resume:
        free_folder(out, "add --resume, or name another with --out")
    against = guards([*wanted, *_tried(out)] if wanted else [])
    with live_progress() as progress:
        facts = study(chosen, against, out / "runs", say, progress)
    write_json(out / "backdoor.json", facts)
    write_backdoor_report(facts, out / "backdoor.html", out / "runs")
    say(*conclusions(facts), f"numbers: {out / 'backdoor.json'}", f"report:  {out / 'backdoor.html'}")
    if as_json:
        told = {
            name: {key: value for key, value in one.items() if key != "curves"}
            for name, one in facts["defences"].items()
        }
        summary = {key: facts[key] for key in ("seeds", "attacked_rounds", "triggers", "holds")}
        print(
            json.dumps({"out": str(out), "report": str(out / "backdoor.html"), **summary, "defences": told}), flush=True
        )


def _tried(out: Path) -> list[str]:
    """Return the defences of the study that a directory holds; none if it holds no whole one."""
    path = out / "backdoor.json"
    if not path.exists():
        return []
    try:
        return [str(name) for name in parse_json(path.read_bytes())["defences"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RunDirectoryError(f"{path} cannot be read ({error}): remove it, and --resume writes it anew") from None


def attacked(source: str, overrides: list[str]) -> Experiment:
    """Return an experiment with a backdoor in it, and nothing chosen or drawn that only takes time.

    Where nothing is said of the attack: client 0, the paper's round 20 (or, of fewer rounds, half way), beta = 10.

    Raises:
        ExperimentError: a setting is wrong, or the experiment has another attack.
    """
    from fedunseen.experiment.reading import glance

    told = overrides_of(overrides)
    glance(source, told)
    from fedunseen.experiment import Experiment

    plain = Experiment.load(
        source,
        {k: v for k, v in told.items() if not k.startswith(("attack.", "evaluation."))}
        | {
            "attack.name": "none",
            "evaluation.selection": "last",
            "evaluation.choose": {},
        },
    )
    settings: dict[str, object] = {
        "attack.name": "backdoor",
        "evaluation.selection": "last",
        "evaluation.choose": {},
        "evaluation.theory": False,
        "evaluation.embedding": False,
        "evaluation.clients": False,
        **told,
    }
    settings["attack.rounds"] = told.get("attack.rounds", _rounds(source, plain))
    chosen = Experiment.load(source, settings)
    if not hasattr(chosen.attack, "triggers"):
        raise ExperimentError(
            f"attack.name = {chosen.attack.name!r} has no triggers, so that there is no backdoor to measure: set it to "
            "'backdoor', or run the experiment with fedunseen run"
        )
    return chosen


def _rounds(source: str, plain: Experiment) -> str:
    """Return the attacked rounds that the file names, or the paper's round 20, or half way of fewer rounds."""
    path = Path(source)
    named = parse_toml(path.read_text("utf-8-sig"), source).get("attack", {}) if path.is_file() else {}
    usual = 20 if plain.strategy.rounds >= 20 else max(1, plain.strategy.rounds // 2)
    return str(named.get("rounds", usual))


def examine(
    experiment: Experiment,
    images: int,
    attacks: Mapping[str, Inversion],
    log: Callable[[str], None],
    sums: Sequence[int] | None = None,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Attack an experiment before its first round; see :mod:`fedunseen.threats.leakage`.

    Args:
        experiment: what to attack; its seed says which samples are chosen.
        images: how many training samples, drawn from those that clients hold.
        attacks: name -> attack.
        log: called with a line for each attack on each sample.
        sums: of how many parties the sums are that are attacked too; None: of 1, 2, 3 and 10, or of all there are.

    Returns:
        What ``leakage.json`` holds, and the tensors of ``leakage.safetensors``.

    Raises:
        FedUnseenError: there is nothing to attack, or fewer samples than asked for.
    """
    import numpy as np

    from fedunseen.core.parameters import to_device
    from fedunseen.core.random import stream
    from fedunseen.core.registry import find
    from fedunseen.experiment.assemble import assemble, load_data, masks_of, partition_of
    from fedunseen.experiment.traits import task_of
    from fedunseen.threats import Subject, measure_classifier, measure_method
    from fedunseen.threats.leakage import Network
    from fedunseen.threats.leakage_sums import measure_classifier_sums, measure_method_sums

    kind, strategy = find("method", experiment.method.name), find("strategy", experiment.strategy.name)
    if not task_of(experiment).attackable:
        raise ExperimentError(
            f"method.name = {experiment.method.name!r} learns from episodes, whose gradients no attack here inverts: "
            "choose a zero-shot method or a classifier, for example fedzsl"
        )
    if not kind.trained:
        raise ExperimentError(
            f"method.name = {experiment.method.name!r} is solved in closed form and sends no gradient that could be "
            "attacked: choose a method that is trained, for example fedzsl"
        )
    if strategy.pools or not strategy.merges:
        raise ExperimentError(
            f"strategy.name = {experiment.strategy.name!r} sends no gradients: choose one that merges updates, for "
            "example fedavg"
        )
    seed = experiment.run.seed
    benchmark = load_data(experiment, seed)
    partition = partition_of(experiment, benchmark, seed)
    held = np.unique(np.concatenate(partition.clients))
    if images > len(held):
        raise ExperimentError(f"--images {images}: the clients hold only {len(held)} training samples")
    parties = [own for own in partition.clients if len(own)]
    if sums is None:
        sums = sorted({min(count, len(parties)) for count in SUMS})
    elif max(sums, default=0) > len(parties):
        raise ExperimentError(f"--sums {max(sums)}: only {len(parties)} clients hold training samples, name fewer")
    federation = assemble(experiment, benchmark, partition)
    victims = np.sort(stream(seed, "leakage samples").choice(held, images, replace=False))
    holders = [next(own for own in partition.clients if victim in own) for victim in victims]
    drawn = to_device(federation.method.init(stream(seed, "initialisation")), federation.device)
    shape = benchmark.image_shape if not experiment.data.features else None  # scaled, they are pixels no more
    pixels = None if shape is None else (1, *shape) if len(shape) == 2 else shape
    subject = Subject(
        federation.method,
        drawn,
        frozenset(federation.first),
        federation.inputs,
        benchmark.labels,
        benchmark.train,
        victims,
        [np.unique(benchmark.labels[own]) for own in holders],
        pixels,
    )
    names = benchmark.space.names
    facts: dict[str, Any] = {
        "experiment": experiment.to_dict(),
        "benchmark": benchmark.name,
        "seed": seed,
        "classes": [names[c] for c in np.unique(benchmark.labels[benchmark.train])],
        "samples": [{"id": int(i), "class": names[benchmark.labels[i]]} for i in victims],
        "shared": list(experiment.strategy.shared),
    }
    tensors: dict[str, Tensor] = {}
    pictures = benchmark.images()
    if pictures is None:
        facts["classifier"] = {"left_out": f"{benchmark.name} gives features, no images that a classifier could see"}
    else:
        told, found = measure_classifier(
            pictures, benchmark.labels, len(names), benchmark.train, victims, attacks, seed, federation.device, log
        )
        facts["classifier"] = told
        tensors |= {f"classifier.{name}": value for name, value in found.items()}
    told, found = measure_method(subject, attacks, seed, log)
    facts["method"] = told
    tensors |= {f"method.{name}": value for name, value in found.items()}
    if not sums:
        return facts, tensors
    # one sample of each party, the first being the first that was attacked by itself
    first = next(k for k, own in enumerate(parties) if victims[0] in own)
    order = [first, *(k for k in range(len(parties)) if k != first)][: max(sums)]
    ids = [victims[0], *(stream(seed, "leakage sums", k).choice(parties[k]) for k in order[1:])]
    classes = [np.unique(benchmark.labels[parties[k]]) for k in order]
    subject = replace(subject, victims=np.array(ids), held=classes)
    summed: dict[str, Any] = {"samples": [{"id": int(i), "class": names[benchmark.labels[i]]} for i in ids]}
    masks = masks_of(experiment, benchmark, partition)
    if pictures is not None:
        network = Network.drawn(pictures, benchmark.labels, len(names), benchmark.train, seed, federation.device)
        summed["classifier"] = measure_classifier_sums(
            network, pictures, benchmark.labels, subject.victims, sums, attacks, masks, log
        )
    summed["phases"] = measure_method_sums(subject, sums, attacks, seed, masks, log)
    return facts | {"sums": summed}, tensors


def _attacks(method: str, steps: int | None) -> dict[str, Inversion]:
    """Return the searches of the command line.

    Raises:
        ExperimentError: an unknown one, or no step.
    """
    from fedunseen.threats import DLG, Cosine

    if method not in METHODS:
        raise ExperimentError("--method: " + unknown("attack", method, METHODS))
    if steps is not None and steps < 1:
        raise ExperimentError(f"--steps {steps}: a search takes at least one step")
    searches: dict[str, Inversion] = {
        "dlg": DLG() if steps is None else DLG(steps),
        "cosine": Cosine() if steps is None else Cosine(steps),
    }
    return searches if method == "both" else {method: searches[method]}


def _sums(text: str | None) -> list[int] | None:
    """Return the numbers of parties of the command line, in ascending order; None if it leaves them open.

    Raises:
        ExperimentError: they are no such numbers.
    """
    if text is None or text.strip() == "none":
        return None if text is None else []
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ExperimentError(f"--sums {text}: give numbers of parties with commas, for example 1,2,3,10, or none")
    return sorted({int(word) for word in words})


def _write(out: Path, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    from fedunseen.core.files import write_json, write_tensors
    from fedunseen.report.leakage_page import write_leakage_report

    write_tensors(out / "leakage.safetensors", tensors)
    write_json(out / "leakage.json", facts)
    write_leakage_report(facts, tensors, out / "leakage.html")


def _summary(facts: dict[str, Any], out: Path) -> dict[str, Any]:
    """Return what ``--json`` prints: the means, without the single samples."""

    def means(attack: dict[str, Any]) -> dict[str, Any]:
        return {
            key: {k: v for k, v in value.items() if k != "samples"} if isinstance(value, dict) else value
            for key, value in attack.items()
            if key not in ("settings", "iterations", "images", "searches", "search")
        }

    classifier = facts["classifier"]
    return {
        "out": str(out),
        "report": str(out / "leakage.html"),
        "seed": facts["seed"],
        "samples": facts["samples"],
        **({"note": facts["note"]} if "note" in facts else {}),
        "classifier": classifier
        if "left_out" in classifier
        else {name: means(attack) for name, attack in classifier["attacks"].items()},
        "phases": {
            name: {"depends": phase.get("depends"), **{key: means(value) for key, value in phase["attacks"].items()}}
            for name, phase in facts["method"]["phases"].items()
        },
        **({"sums": _sums_summary(facts["sums"], means)} if "sums" in facts else {}),
    }


def _sums_summary(sums: dict[str, Any], means: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Return what ``--json`` prints of attacks on sums."""

    def rows(told: dict[str, Any]) -> dict[str, Any]:
        return {name: [means(row) for row in found] for name, found in told.items()}

    classifier = {"classifier": rows(sums["classifier"])} if "classifier" in sums else {}
    phases = {name: rows(told) for name, told in sums["phases"].items()}
    return {"samples": sums["samples"], **classifier, "phases": phases}
