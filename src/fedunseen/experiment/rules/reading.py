"""Rules about settings alone, asked when an experiment is read and where it is started."""

from collections.abc import Iterator, Sequence
from typing import Any

from fedunseen.attacks.base import AttackSettings, parse_rounds
from fedunseen.experiment.rules.base import ConfigFacts, Rule, StartFacts, first
from fedunseen.strategies.peers import averages

BUFFERED = ("attack", "defence", "privacy", "growth")
FIXED = ("run", "evaluation", "data", "encoder", "partition", "privacy")
SEVERAL_LOSSES: Rule[ConfigFacts] = Rule("screening-several-losses", lambda c: c.has("screening") and c.losses != 1)
"""Asked when the experiment is read, and again of the model that is made."""


def _kept_out(c: ConfigFacts) -> dict[str, Any] | None:
    """Return what a start in closed form has no place for."""
    kept = ["method.hidden"] if c.get("method", "hidden") else []
    kept += ["strategy.shared"] if tuple(c.experiment.strategy.shared) != ("*",) else []
    if not c.starts_closed or not (kept or not c.strategy.merges):
        return None
    return {"what": " and ".join(kept) or f"strategy.name = {c.experiment.strategy.name!r}, which merges nothing,"}


def _buffered(c: ConfigFacts) -> dict[str, Any] | None:
    """Return the setting that lets updates merge as they come, and what may be in its way."""
    buffer, name = c.get("engine", "buffer"), c.experiment.engine.name
    if buffer is None:
        return None
    what = "engine.name = 'buffered'" if name == "buffered" else f"engine.buffer = {buffer}"
    return {"what": what, "others": c.choices(BUFFERED, ", ")}


def _plain_means(c: ConfigFacts) -> bool:
    """Return whether the merged model is a plain mean of the clients'."""
    return not any(c.named("defence", "privacy", "compression")) and averages(c.strategy(c.experiment.strategy))


def _local_classes(c: ConfigFacts) -> Iterator[str]:
    """Yield losses whose denominators run over a client's own classes: of a single one they are zero."""
    return (f"method.{key}" for key in ("sce_classes", "kl_classes") if c.get("method", key) == "local")


def _begins_late(c: ConfigFacts) -> bool:
    attack, rounds = c.experiment.attack, c.experiment.strategy.rounds
    return isinstance(attack, AttackSettings) and min((r for r, _ in parse_rounds(attack.rounds)), default=1) > rounds


def _fitted(c: ConfigFacts) -> dict[str, Any] | None:
    """Return the scalings of descriptions that are fitted to the seen classes, which change."""
    fitted = [step for step in c.experiment.data.semantics if step in ("centre", "standard", "min-max")]
    return {"fitted": fitted} if c.has("growth") and c.method.trained and fitted else None


def _elsewhere(s: StartFacts) -> str:
    """Return what starts a run whose clients are elsewhere."""
    commands = {"websocket": "fedunseen host", "flower": "flwr run", "nvflare": "nvflare job submit"}
    return commands.get(s.experiment.engine.name, "fedunseen offline plan")


READING: Sequence[Rule[ConfigFacts]] = (
    # methods that are solved from sums
    Rule("client-privacy-of-sums", lambda c: not c.method.trained and c.experiment.privacy.name == "client-level"),
    Rule("updates-of-sums", lambda c: not c.method.trained, sections=("attack", "screening", "defence", "compression")),
    Rule("sample-privacy-of-training", lambda c: c.experiment.privacy.name == "sample-level" and c.method.trained),
    Rule(
        "two-bounds-on-samples",
        lambda c: c.experiment.privacy.name == "sample-level" and c.get("method", "clip_norm") is not None,
    ),
    Rule(
        "sample-privacy-of-rounds",
        lambda c: c.experiment.privacy.name == "sample-level" and c.experiment.strategy.rounds > 1,
    ),
    Rule(
        "rounds-of-sums",
        lambda c: (
            not c.method.trained
            and c.experiment.strategy.rounds > 1
            and not (c.experiment.partition.join or c.experiment.partition.leave or c.has("growth"))
        ),
    ),
    Rule("rounds-of-totals", lambda c: c.get("method", "retention") == "total" and c.experiment.strategy.rounds > 1),
    Rule(
        "start-with-section",
        lambda c: c.starts_closed,
        sections=("attack", "screening", "defence", "privacy", "growth"),
    ),
    Rule("start-not-linear", _kept_out),
    # how updates merge
    Rule("section-without-merging", lambda c: not c.merging, sections=("defence", "privacy", "compression")),
    Rule("compression-of-exact-updates", lambda c: c.has("compression") and c.strategy.needs_exact_update),
    Rule("compression-of-attacks", lambda c: c.has("attack") and c.has("compression")),
    Rule(
        "client-models",
        lambda c: c.experiment.strategy.personal_epochs is not None,
        reasons={
            "strategy.name = {strategy.name!r} merges none": lambda c: not c.merging,
            "method.name = {method.name!r} is solved from sums, not trained": lambda c: not c.method.trained,
            "method.name = {method.name!r} would train classifiers for each client": lambda c: c.method.generates,
            "method.name = {method.name!r} leaves parameters with the clients": lambda c: (
                c.method.private or (c.method.training_only and "*" not in c.experiment.strategy.shared)
            ),
            "{facts.task.name} methods measure no client's own model": lambda c: not c.task.personalizes,
            "engine.name = {engine.name!r} has the clients' samples elsewhere": lambda c: c.distributed,
            "attack.name = {attack.name!r} has clients that are not honest": lambda c: c.has("attack"),
            "[growth] changes who holds what from round to round": lambda c: c.has("growth"),
        },
    ),
    Rule(
        "head-epochs",
        lambda c: c.experiment.strategy.head_epochs is not None and {"shared": list(c.experiment.strategy.shared)},
        reasons={
            "method.name = {method.name!r} is solved from sums": lambda c: not c.method.trained,
            "method.name = {method.name!r} has several phases of its own": lambda c: c.method.generates,
            "strategy.shared = {shared} leaves nothing with it": lambda c: (
                "*" in c.experiment.strategy.shared or not c.merging
            ),
        },
    ),
    Rule(
        "late-updates",
        _buffered,
        reasons={
            "strategy.name = {strategy.name!r} merges nothing": lambda c: not c.merging,
            "strategy.name = {strategy.name!r} takes more than the mean of updates that began together": lambda c: (
                not c.strategy.merges_by_mean or c.strategy.needs_exact_update
            ),
            "method.name = {method.name!r} is solved from sums": lambda c: not c.method.trained,
            "method.exclusive asks who had a share in the last merge": lambda c: c.get("method", "exclusive"),
            "strategy.fraction = {strategy.fraction:g} lets some clients rest": lambda c: (
                c.experiment.strategy.fraction != 1
            ),
            "clients come and go (partition.join, partition.leave)": lambda c: (
                c.experiment.partition.join or c.experiment.partition.leave
            ),
            "{others} is about rounds of clients that began together": lambda c: any(c.named(*BUFFERED)),
            "privacy.aggregation = 'masked' adds up the updates of one round, from one model": lambda c: c.masked,
        },
    ),
    Rule("exclusive-peers", lambda c: c.get("method", "exclusive") and not _plain_means(c)),
    Rule("shared-without-merging", lambda c: not c.strategy.merges and c.experiment.strategy.shared != ("*",)),
    # noise on what clients send, and masks over it
    Rule("privacy-needs-mean", lambda c: c.has("privacy") and not c.strategy.merges_by_mean),
    Rule("privacy-weights", lambda c: c.has("privacy") and c.experiment.strategy.weights == "samples"),
    Rule("privacy-validation", lambda c: c.has("privacy") and c.evaluation.selection == "validation"),
    Rule("masks-without-merging", lambda c: c.masked and not c.merging),
    Rule("masks-need-mean", lambda c: c.masked and c.method.trained and not c.strategy.merges_by_mean),
    Rule("masks-with-noise-of-some", lambda c: c.masked and c.has("privacy") and c.experiment.strategy.fraction < 1),
    Rule("masks-with-defence", lambda c: c.masked and c.has("defence")),
    Rule("masks-with-client-models", lambda c: c.masked and c.evaluation.clients),
    Rule("masks-with-rounds-of-sums", lambda c: c.masked and not c.method.trained and c.experiment.strategy.rounds > 1),
    Rule("masks-with-exclusive-peers", lambda c: c.masked and c.get("method", "exclusive")),
    Rule("masks-with-growth", lambda c: c.masked and c.has("growth")),
    Rule("masks-with-compression", lambda c: c.masked and c.has("compression")),
    Rule("masks-with-start", lambda c: c.masked and c.starts_closed),
    # With these a sum of many parties could be the update of one: the others' losses would be empty.
    Rule("masks-with-screening", lambda c: c.masked and c.has("screening")),
    Rule("masks-with-local-classes", lambda c: c.masked and first("key", _local_classes(c))),
    # attacks, screening of samples, and defences
    Rule("threat-without-merging", lambda c: not c.merging, sections=("attack", "screening")),
    Rule("threat-of-episodes", lambda c: not c.task.attackable, sections=("attack", "screening")),
    SEVERAL_LOSSES,
    Rule("attack-too-late", _begins_late),
    Rule(
        "attack-needs-last-round",
        lambda c: isinstance(c.experiment.attack, AttackSettings) and c.evaluation.selection != "last",
    ),
    Rule("defence-unbounded", lambda c: c.has("defence") and c.strategy.lengths == "model"),
    # where clients run
    Rule(
        "not-deployable",
        lambda c: c.experiment.deployed or c.get("data", "part"),  # at a party too
        reasons={
            "strategy.name = {strategy.name!r} merges nothing": lambda c: not c.merging,
            "attack.name = {attack.name!r} is a simulated one": lambda c: c.has("attack"),
            "privacy.name = {privacy.name!r} with strategy.weights = {strategy.weights!r} has to know who holds how "
            "many classes": lambda c: (
                c.experiment.privacy.name == "client-level" and c.experiment.strategy.weights != "uniform"
            ),
            "privacy.name = 'sample-level' without privacy.aggregation = 'masked' lets parties tell the coordinator "
            "how much they hold": lambda c: c.experiment.privacy.name == "sample-level" and not c.masked,
            "privacy.noise_from = {privacy.noise_from!r} lets the coordinator take off the noise that parties "
            "add": lambda c: c.masked and c.has("privacy") and c.experiment.privacy.noise_from == "seed",
            "defence.name = {defence.name!r} has to know who holds which classes": lambda c: c.asks_scores,
            "run.seeds = {run.seeds} are as many runs": lambda c: c.experiment.run.seeds > 1,
        },
    ),
    # how a round and settings are chosen, and what is measured
    Rule("choose-without-validation", lambda c: c.evaluation.choose and c.evaluation.selection != "validation"),
    Rule(
        "stop-without-validation", lambda c: c.experiment.strategy.stop_after and c.evaluation.selection != "validation"
    ),
    Rule("stop-after-all-rounds", lambda c: (c.experiment.strategy.stop_after or 0) >= c.experiment.strategy.rounds),
    Rule(
        "stop-between-measurements", lambda c: 0 < (c.experiment.strategy.stop_after or 0) < (c.evaluation.every or 0)
    ),
    Rule("every-round-measured", lambda c: (c.evaluation.every or 1) > 1, sections=("attack", "growth")),
    Rule(
        "factor-without-calibration", lambda c: c.evaluation.factor is not None and c.evaluation.calibration == "none"
    ),
    Rule("factor-without-unseen-classes", lambda c: c.evaluation.factor is not None and not c.method.zero_shot),
    Rule("choose-with-task", lambda c: c.evaluation.choose and not c.task.chooses_settings),
    Rule(
        "choose-fixed-setting",
        lambda c: first("key", (one for one in c.evaluation.choose if one.split(".")[0] in FIXED)),
    ),
    Rule(
        "choose-from-nothing",
        lambda c: first("key", (one for one, values in c.evaluation.choose.items() if not values)),
    ),
    # unlabelled samples
    Rule("unlabelled-without-means", lambda c: c.get("data", "unlabelled") and c.experiment.method.name != "gaussian"),
    Rule(
        "unlabelled-several-models",
        lambda c: c.get("data", "unlabelled") and (not c.merging or c.has("growth") or c.has("privacy")),
    ),
    # classes that arrive while a run trains
    Rule("growth-of-parameters", lambda c: c.has("growth") and not c.method.grows),
    Rule("growth-without-merging", lambda c: c.has("growth") and not c.merging),
    Rule("growth-with-section", lambda c: c.has("growth"), sections=("attack", "screening", "defence", "privacy")),
    Rule("growth-needs-last-round", lambda c: c.has("growth") and c.evaluation.selection != "last"),
    Rule("growth-of-scaling", _fitted),
    Rule(
        "growth-in-processes",
        lambda c: c.has("growth") and c.experiment.engine.name != "in-process" and not c.experiment.deployed,
    ),
    Rule("growth-of-parties", lambda c: c.has("growth") and c.experiment.deployed and c.experiment.growth.arrive),
)

START: Sequence[Rule[StartFacts]] = (
    Rule("part-of-data", lambda s: s.get("data", "part") and not (s.deployed_here and s.experiment.deployed)),
    Rule("deployment-here", lambda s: not s.deployed_here and s.distributed and {"starts": _elsewhere(s)}),
    Rule("arrays-not-named", lambda s: s.arrays and s.experiment.data.name != "arrays"),
)

OFFLINE: Sequence[Rule[StartFacts]] = (
    Rule(
        "offline-several-answers",
        reasons={
            "method.name = {method.name!r} trains in rounds": lambda s: s.method.trained,
            "evaluation.selection = 'validation' asks the parties twice": lambda s: (
                s.evaluation.selection == "validation"
            ),
            "growth.name = {growth.name!r} changes the classes": lambda s: s.has("growth"),
        },
    ),
)
"""Asked where a federation by file is planned."""
