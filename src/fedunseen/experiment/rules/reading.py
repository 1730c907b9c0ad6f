"""Rules about settings alone, asked when an experiment is read and where it is started."""

from collections.abc import Sequence
from typing import Any

from fedunseen.core.text import whole
from fedunseen.evaluation.settings import COMBINATIONS
from fedunseen.experiment.rules.base import ConfigFacts, Rule, StartFacts, first
from fedunseen.methods.closed_form.unlabelled import adapting
from fedunseen.strategies.peers import averages

BUFFERED = ("attack", "defence", "privacy", "growth")
FIXED = ("run", "evaluation", "data", "encoder", "partition", "privacy")


def _kept_out(c: ConfigFacts) -> dict[str, Any] | None:
    """Return what a start in closed form has no place for."""
    kept = ["method.hidden"] if c.get("method", "hidden") else []
    kept += ["strategy.shared"] if tuple(c.experiment.strategy.shared) != ("*",) else []
    if not c.starts_closed or not (kept or not c.strategy.merges):
        return None
    return {
        "what": " and ".join(kept)
        or f"strategy.name = {c.experiment.strategy.name!r}, which merges nothing,"
    }


def _buffered(c: ConfigFacts) -> dict[str, Any] | None:
    """Return the setting that lets updates merge as they come, and what may be in its way."""
    buffer = c.get("engine", "buffer")
    name = c.experiment.engine.name
    if buffer is None:
        return None
    setting = "engine.name = 'buffered'" if name == "buffered" else f"engine.buffer = {buffer}"
    return {"what": setting, "others": c.choices(BUFFERED, ", ")}


def _plain_means(c: ConfigFacts) -> bool:
    """Return whether the merged model is a plain mean of the clients'."""
    return not any(c.named_sections("defence", "privacy", "compression")) and averages(
        c.strategy(c.experiment.strategy)
    )


def _fitted(c: ConfigFacts) -> dict[str, Any] | None:
    """Return the scalings of descriptions that are fitted to the seen classes, which change."""
    fitted = [
        step for step in c.experiment.data.semantics if step in ("centre", "standard", "min-max")
    ]
    return {"fitted": fitted} if c.has("growth") and c.method.trained and fitted else None


READING: Sequence[Rule[ConfigFacts]] = (
    # methods that are solved from sums
    Rule(
        "updates-of-sums",
        lambda c: not c.method.trained,
        sections=("attack", "screening", "defence", "compression"),
        problem=(
            "{section}.name = {name!r} is about clients that train, but method.name = "
            "{method.name!r} is solved from sums"
        ),
        remedy="leave [{section}] out, or choose a method that is trained, for example fedzsl",
        example={"defence.name": "median"},
        preset="digit-pairs-gaussian",
    ),
    Rule(
        "kernel-not-last",
        lambda c: "kernel" in (c.experiment.data.features or ())[:-1],
        problem="data.features = {data.features} scales what a kernel has made",
        remedy="put kernel last",
        example={"data.features": ["kernel", "l2"]},
        preset="digit-pairs-gaussian",
    ),
    Rule(
        "kernel-of-trained",
        lambda c: c.method.trained and "kernel" in (c.experiment.data.features or ()),
        problem=(
            "data.features = {data.features} lets linear models curve, and method.name = "
            "{method.name!r} is trained"
        ),
        remedy="set method.hidden for curved boundaries, or choose a closed form",
        example={"data.features": ["standard", "kernel"]},
    ),
    Rule(
        "rounds-of-sums",
        lambda c: (
            not c.method.trained
            and c.experiment.strategy.rounds > 1
            and not (c.experiment.partition.join or c.experiment.partition.leave or c.has("growth"))
        ),
        problem="method.name = {method.name!r} is solved from sums, which clients send once",
        remedy=(
            "leave strategy.rounds out, or set it to 1 (more rounds are for partitions with "
            "clients that come late, partition.join)"
        ),
        example={"method.name": "eszsl", "strategy.rounds": 3},
    ),
    Rule(
        "rounds-of-totals",
        lambda c: c.get("method", "retention") == "total" and c.experiment.strategy.rounds > 1,
        problem=(
            "method.retention = 'total' keeps no client's own sums, so that no client can come "
            "late or leave"
        ),
        remedy=(
            "set strategy.rounds to 1 and leave partition.join and partition.leave out, or "
            "method.retention = 'each'"
        ),
        example={"method.retention": "total", "strategy.rounds": 2, "partition.join": {"1": 1}},
        preset="digit-pairs-gaussian",
    ),
    Rule(
        "start-with-section",
        lambda c: c.starts_closed,
        sections=("attack", "screening", "defence", "privacy", "growth"),
        problem=(
            "method.start = 'closed-form' lets clients send sums before they train, which "
            "{section}.name = {name!r} does not cover"
        ),
        remedy="leave one of the two out",
        example={
            "evaluation.selection": "last",
            "method.start": "closed-form",
            "method.hidden": [],
            "defence.name": "median",
        },
    ),
    Rule(
        "start-not-linear",
        _kept_out,
        problem="method.start = 'closed-form' starts every client from one linear model",
        remedy="leave {what} out",
        example={"method.start": "closed-form"},
    ),
    # how updates merge
    Rule(
        "section-without-merging",
        lambda c: not c.merging,
        sections=("defence", "privacy", "compression"),
        problem=(
            "{section}.name = {name!r} has no effect with strategy.name = {strategy.name!r}, which "
            "merges no clients' updates"
        ),
        remedy="leave it out, or choose a strategy that does",
        example={
            "evaluation.selection": "last",
            "defence.name": "median",
            "strategy.name": "local",
        },
    ),
    Rule(
        "compression-of-exact-updates",
        lambda c: c.has("compression") and c.strategy.needs_exact_update,
        problem=(
            "compression.name = {compression.name!r} changes updates, but under strategy.name = "
            "{strategy.name!r} client and server must compute the same numbers from them"
        ),
        remedy="choose another strategy, for example fedavg",
        example={"compression.name": "8-bit", "strategy.name": "scaffold"},
    ),
    Rule(
        "client-models",
        lambda c: c.experiment.strategy.personal_epochs is not None,
        reasons={
            "strategy.name = {strategy.name!r} merges none": lambda c: not c.merging,
            "method.name = {method.name!r} is solved from sums, not trained": lambda c: (
                not c.method.trained
            ),
            "method.name = {method.name!r} would train classifiers for each client": lambda c: (
                c.method.generates
            ),
            "method.name = {method.name!r} leaves parameters with the clients": lambda c: (
                c.method.private
                or (c.method.training_only and "*" not in c.experiment.strategy.shared)
            ),
            "{facts.task.name} methods measure no client's own model": lambda c: (
                not c.task.personalizes
            ),
            "engine.name = {engine.name!r} has the clients' samples elsewhere": lambda c: (
                c.distributed
            ),
            "attack.name = {attack.name!r} has clients that are not honest": lambda c: c.has(
                "attack"
            ),
            "[growth] changes who holds what from round to round": lambda c: c.has("growth"),
        },
        problem=(
            "strategy.personal_epochs trains the merged model further at every client, but {reason}"
        ),
        remedy="leave it out",
        example={"strategy.personal_epochs": 1},
        preset="digit-pairs-clswgan",
    ),
    Rule(
        "head-epochs",
        lambda c: (
            c.experiment.strategy.head_epochs is not None
            and {"shared": list(c.experiment.strategy.shared)}
        ),
        reasons={
            "method.name = {method.name!r} is solved from sums": lambda c: not c.method.trained,
            "method.name = {method.name!r} has several phases of its own": lambda c: (
                c.method.generates
            ),
            "strategy.shared = {shared} leaves nothing with it": lambda c: (
                "*" in c.experiment.strategy.shared or not c.merging
            ),
        },
        problem="strategy.head_epochs trains what stays with a client by itself, and {reason}",
        remedy="name what travels in strategy.shared, or leave strategy.head_epochs out",
        example={"strategy.head_epochs": 2},
    ),
    Rule(
        "late-updates",
        _buffered,
        reasons={
            "strategy.name = {strategy.name!r} merges nothing": lambda c: not c.merging,
            "strategy.name = {strategy.name!r} takes more than the mean of updates that began "
            "together": lambda c: not c.strategy.merges_by_mean or c.strategy.needs_exact_update,
            "method.name = {method.name!r} is solved from sums": lambda c: not c.method.trained,
            "method.exclusive asks who had a share in the last merge": lambda c: c.get(
                "method", "exclusive"
            ),
            "strategy.fraction = {strategy.fraction:g} lets some clients rest": lambda c: (
                c.experiment.strategy.fraction != 1
            ),
            "clients come and go (partition.join, partition.leave)": lambda c: (
                c.experiment.partition.join or c.experiment.partition.leave
            ),
            "{others} is about rounds of clients that began together": lambda c: any(
                c.named_sections(*BUFFERED)
            ),
            "privacy.aggregation = 'masked' adds up the updates of one round, from one model": lambda c: (
                c.masked
            ),
        },
        problem="{what} merges updates as they come, but {reason}",
        remedy="change one of them",
        example={"engine.name": "buffered", "strategy.name": "scaffold"},
    ),
    Rule(
        "exclusive-peers",
        lambda c: c.get("method", "exclusive") and not _plain_means(c),
        problem="method.exclusive needs merged models that are plain means of the clients'",
        remedy=(
            "set strategy.name to fedavg, fedprox or moon, strategy.weights = 'uniform' and "
            "strategy.server_lr = 1, without [defence], [privacy] and [compression]"
        ),
        example={"method.name": "maml-mi", "method.exclusive": True, "strategy.weights": "samples"},
        preset="digit-pairs-few-shot",
    ),
    Rule(
        "shared-without-merging",
        lambda c: not c.strategy.merges and c.experiment.strategy.shared != ("*",),
        problem=(
            "strategy.shared has no effect with strategy.name = {strategy.name!r}, where nothing "
            "travels"
        ),
        remedy="set it to ['*']",
        example={"strategy.name": "local", "strategy.shared": ["g.*"]},
    ),
    # how a round and settings are chosen, and what is measured
    Rule(
        "choose-without-validation",
        lambda c: c.evaluation.choose and c.evaluation.selection != "validation",
        problem="evaluation.choose needs evaluation.selection = 'validation'",
        remedy="set it, or leave evaluation.choose out",
        example={"evaluation.selection": "last", "evaluation.choose": {"method.lr": [0.1]}},
    ),
    Rule(
        "stop-without-validation",
        lambda c: c.experiment.strategy.stop_after and c.evaluation.selection != "validation",
        problem=(
            "strategy.stop_after = {strategy.stop_after} stops where validation classes show no "
            "gain, and evaluation.selection = {evaluation.selection!r} looks at none"
        ),
        remedy="set it to 'validation', or leave strategy.stop_after out",
        example={"evaluation.selection": "last", "strategy.stop_after": 5},
    ),
    Rule(
        "stop-after-all-rounds",
        lambda c: (c.experiment.strategy.stop_after or 0) >= c.experiment.strategy.rounds,
        problem=(
            "strategy.stop_after = {strategy.stop_after} can stop no run of {strategy.rounds} "
            "rounds"
        ),
        remedy="lower it, or raise strategy.rounds",
        example={"strategy.stop_after": 5, "strategy.rounds": 5},
    ),
    Rule(
        "stop-between-measurements",
        lambda c: 0 < (c.experiment.strategy.stop_after or 0) < (c.evaluation.every or 0),
        problem=(
            "strategy.stop_after = {strategy.stop_after} counts rounds without gain, but none of "
            "them may be measured with evaluation.every = {evaluation.every}"
        ),
        remedy="let evaluation.every be at most strategy.stop_after",
        example={"strategy.stop_after": 3, "evaluation.every": 4},
    ),
    Rule(
        "every-round-measured",
        lambda c: (c.evaluation.every or 1) > 1,
        sections=("attack", "growth"),
        problem=(
            "evaluation.every = {evaluation.every} leaves rounds out, and {section}.name = "
            "{name!r} is measured round by round"
        ),
        remedy="leave evaluation.every out",
        example={"evaluation.selection": "last", "evaluation.every": 2, "attack.name": "sign-flip"},
    ),
    Rule(
        "factor-without-calibration",
        lambda c: c.evaluation.factor is not None and c.evaluation.calibration == "none",
        problem="evaluation.factor has no effect with evaluation.calibration = 'none'",
        remedy="leave one out",
        example={"evaluation.factor": 1.0, "evaluation.calibration": "none"},
    ),
    Rule(
        "factor-without-unseen-classes",
        lambda c: c.evaluation.factor is not None and not c.method.zero_shot,
        problem=(
            "evaluation.factor has no effect on method.name = {method.name!r}, which recognizes no "
            "unseen class"
        ),
        remedy="leave it out",
        example={"evaluation.factor": 1.0},
        preset="digit-pairs-classifier",
    ),
    Rule(
        "choose-with-task",
        lambda c: c.evaluation.choose and not c.task.chooses_settings,
        problem=(
            "evaluation.choose is not available for {facts.task.name} methods such as method.name "
            "= {method.name!r}"
        ),
        remedy=(
            "compare settings with a sweep, on validation classes (evaluation.selection = "
            "'validation')"
        ),
        example={"evaluation.selection": "validation", "evaluation.choose": {"method.lr": [0.1]}},
        preset="omniglot-maml",
    ),
    Rule(
        "choose-fixed-setting",
        lambda c: first("key", (key for key in c.evaluation.choose if key.split(".")[0] in FIXED)),
        problem="evaluation.choose: {key!r} cannot be chosen",
        remedy="choose settings of method, strategy, defence and engine",
        example={"evaluation.choose": {"data.name": ["digits"]}},
    ),
    Rule(
        "choose-from-nothing",
        lambda c: first("key", (key for key, values in c.evaluation.choose.items() if not values)),
        problem="evaluation.choose: {key!r} has no value to choose from",
        remedy="list some values",
        example={"evaluation.choose": {"method.lr": []}},
    ),
    Rule(
        "choose-from-too-many",
        lambda c: (
            {"tried": whole(c.evaluation.combinations)}
            if c.evaluation.combinations > COMBINATIONS
            else None
        ),
        problem=(
            f"evaluation.choose has {{tried}} combinations, and {COMBINATIONS:,} are the most"
        ),
        remedy="list fewer values",
        example={
            "evaluation.choose": {
                f"method.{key}": [1, 2, 3, 4, 5, 6] for key in ("lr", "kl", "sce", "alpha")
            }
        },
    ),
    # unlabelled samples
    Rule(
        "unlabelled-without-means",
        lambda c: (
            {"able": adapting()} if c.get("data", "unlabelled") and not c.method.adapts else None
        ),
        problem=(
            "method.name = {method.name!r} keeps no class means that data.unlabelled = true could "
            "adapt"
        ),
        remedy="set method.name = {able}, or data.unlabelled = false",
        example={"data.name": "folder", "data.root": "somewhere", "data.unlabelled": True},
    ),
    Rule(
        "unlabelled-several-models",
        lambda c: (
            c.get("data", "unlabelled") and (not c.merging or c.has("growth") or c.has("privacy"))
        ),
        problem=(
            "data.unlabelled = true adapts one merged model, and does not work with [growth] or "
            "[privacy] noise"
        ),
        remedy="set data.unlabelled = false, and call fedunseen adapt on the finished run",
        example={
            "data.name": "folder",
            "data.root": "somewhere",
            "data.unlabelled": True,
            "strategy.name": "local",
        },
        preset="digit-pairs-gaussian",
    ),
    # classes that arrive while a run trains
    Rule(
        "growth-of-parameters",
        lambda c: c.has("growth") and not c.method.grows,
        problem=(
            "growth.name = {growth.name!r} adds classes while the run trains, and method.name = "
            "{method.name!r} has parameters for each class or learns without descriptions"
        ),
        remedy=(
            "choose a method that scores classes by their descriptions alone, for example gaussian "
            "or fedzsl"
        ),
        example={
            "evaluation.selection": "last",
            "growth.name": "unknown",
            "method.name": "classifier",
        },
    ),
    Rule(
        "growth-without-merging",
        lambda c: c.has("growth") and not c.merging,
        problem=(
            "growth.name = {growth.name!r} is about classes that reach the merged model, and "
            "strategy.name = {strategy.name!r} merges nothing"
        ),
        remedy="choose another, for example fedavg",
        example={
            "evaluation.selection": "last",
            "growth.name": "unknown",
            "strategy.name": "centralised",
        },
    ),
    Rule(
        "growth-with-section",
        lambda c: c.has("growth"),
        sections=("attack", "screening", "defence", "privacy"),
        problem=(
            "{section}.name = {name!r} is set up once, for classes that do not change, and "
            "growth.name = {growth.name!r} changes them"
        ),
        remedy="leave [{section}] or [growth] out",
        example={
            "evaluation.selection": "last",
            "growth.name": "described",
            "defence.name": "median",
        },
    ),
    Rule(
        "growth-needs-last-round",
        lambda c: c.has("growth") and c.evaluation.selection != "last",
        problem=(
            "growth.name = {growth.name!r} changes the classes between rounds, so "
            "evaluation.selection = {evaluation.selection!r} cannot compare rounds"
        ),
        remedy="set it to 'last'",
        example={"growth.name": "unknown"},
    ),
    Rule(
        "growth-of-scaling",
        _fitted,
        problem=(
            "data.semantics = {fitted} is fitted to the seen classes, which growth.name = "
            "{growth.name!r} changes while method.name = {method.name!r} trains"
        ),
        remedy="use l2 or nothing, or scale the descriptions beforehand",
        example={
            "evaluation.selection": "last",
            "growth.name": "unknown",
            "data.semantics": ["centre", "l2"],
        },
    ),
    Rule(
        "growth-in-processes",
        lambda c: (
            c.has("growth")
            and c.experiment.engine.name != "in-process"
            and not c.experiment.deployed
        ),
        problem=(
            "growth.name = {growth.name!r} is not available for engine.name = {engine.name!r}, "
            "whose worker processes have the classes of the first round alone"
        ),
        remedy="set engine.name = 'in-process', or host a deployment",
        example={
            "evaluation.selection": "last",
            "growth.name": "unknown",
            "engine.name": "flower",
            "engine.mode": "simulation",
        },
    ),
)

START: Sequence[Rule[StartFacts]] = (
    Rule(
        "arrays-not-named",
        lambda s: s.arrays and s.experiment.data.name != "arrays",
        problem="a benchmark is given, but data.name = {data.name!r} names other data",
        remedy="set it to 'arrays'",
        example={},
        needs="arrays",
    ),
)
