"""Combinations of settings that deployments and masks refuse."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedunseen.experiment.rules.base import ConfigFacts, PresenceFacts, Rule, StartFacts, first


def _local_classes(c: ConfigFacts) -> Iterator[str]:
    """Yield losses whose denominators run over a client's own classes: of a single one they are
    zero.
    """
    return (
        f"method.{key}" for key in ("sce_classes", "kl_classes") if c.get("method", key) == "local"
    )


def _elsewhere(s: StartFacts) -> str:
    """Return what starts a run whose clients are elsewhere."""
    commands = {
        "websocket": "fedunseen host",
        "flower": "flwr run",
        "nvflare": "nvflare job submit",
    }
    return commands.get(s.experiment.engine.name, "fedunseen offline plan")


def _too_few(p: PresenceFacts) -> dict[str, Any] | None:
    """Return the first round in which fewer clients take part than a sum under masks needs."""
    if not p.masked or (p.get("data", "part") and not p.partition.remote):
        return None  # a party does not have the list of the others
    from fedunseen.deploy.secagg.enrolment import colluders, threshold

    clients = len(p.partition.clients)
    least = threshold(clients, colluders(clients))
    few = [(round, drawn) for round, drawn in p.drawn().items() if drawn < least]
    return (
        {"clients": clients, "least": least, "round": few[0][0], "drawn": few[0][1]}
        if few
        else None
    )


def _varies(p: PresenceFacts) -> bool:
    """Return whether two sums under masks may be of different clients, although the settings do not
    allow it.
    """
    if not p.masked or (p.get("data", "part") and not p.partition.remote):
        return False
    varies = (
        p.experiment.strategy.fraction < 1
        or len({tuple(present) for present in p.rounds().values()}) > 1
    )
    return varies and p.experiment.privacy.dropouts == "refuse"


def _too_many(p: PresenceFacts) -> dict[str, Any] | None:
    """Return how many clients there are, if masks are not made for so many."""
    if not p.masked:
        return None
    from fedunseen.deploy.secagg.ring import PARTIES  # needs the libraries of masks

    clients = len(p.partition.clients)
    return {"clients": clients, "most": PARTIES} if clients > PARTIES else None


READING: Sequence[Rule[ConfigFacts]] = (
    Rule(
        "masks-without-merging",
        lambda c: c.masked and not c.merging,
        problem=(
            "privacy.aggregation = 'masked' has no effect with strategy.name = {strategy.name!r}, "
            "which merges no clients' updates"
        ),
        remedy="leave it out, or choose a strategy that does",
        example={"privacy.aggregation": "masked", "strategy.name": "local"},
    ),
    Rule(
        "masks-need-mean",
        lambda c: c.masked and c.method.trained and not c.strategy.merges_by_mean,
        problem=(
            "privacy.aggregation = 'masked' leaves only the weighted mean of the updates, but "
            "strategy.name = {strategy.name!r} takes more than that from its clients"
        ),
        remedy="choose another, for example fedavg",
        example={"privacy.aggregation": "masked", "strategy.name": "scaffold"},
    ),
    Rule(
        "masks-with-noise-of-some",
        lambda c: c.masked and c.has("privacy") and c.experiment.strategy.fraction < 1,
        problem=(
            "privacy.name = {privacy.name!r} under privacy.aggregation = 'masked' needs every "
            "client in every round, since each adds a part of the noise"
        ),
        remedy="set strategy.fraction to 1",
        example={
            "evaluation.selection": "last",
            "privacy.aggregation": "masked",
            "privacy.name": "client-level",
            "privacy.epsilon": 8,
            "privacy.clip": 1,
            "strategy.fraction": 0.5,
        },
    ),
    Rule(
        "masks-with-defence",
        lambda c: c.masked and c.has("defence"),
        problem=(
            "defence.name = {defence.name!r} judges updates one by one, which privacy.aggregation "
            "= 'masked' hides"
        ),
        remedy="leave one of the two out",
        example={"privacy.aggregation": "masked", "defence.name": "krum"},
    ),
    Rule(
        "masks-with-client-models",
        lambda c: c.masked and c.evaluation.clients,
        problem=(
            "evaluation.clients measures every client's own model, which privacy.aggregation = "
            "'masked' hides"
        ),
        remedy="leave it out",
        example={"privacy.aggregation": "masked", "evaluation.clients": True},
    ),
    Rule(
        "masks-with-rounds-of-sums",
        lambda c: c.masked and not c.method.trained and c.experiment.strategy.rounds > 1,
        problem=(
            "privacy.aggregation = 'masked' adds up the statistics of method.name = "
            "{method.name!r} once: the difference of two of {strategy.rounds} rounds could reveal "
            "one party"
        ),
        remedy="set strategy.rounds to 1, without partition.join and partition.leave",
        example={"privacy.aggregation": "masked", "strategy.rounds": 3, "partition.join": {"1": 1}},
        preset="digit-pairs-gaussian",
    ),
    Rule(
        "masks-with-exclusive-peers",
        lambda c: c.masked and c.get("method", "exclusive"),
        problem=(
            "method.exclusive takes a client's own share out of the merged model exactly, which "
            "the rounding of privacy.aggregation = 'masked' does not allow"
        ),
        remedy="leave one of the two out",
        example={
            "privacy.aggregation": "masked",
            "method.name": "maml-mi",
            "method.exclusive": True,
            "strategy.weights": "uniform",
        },
        preset="digit-pairs-few-shot",
    ),
    Rule(
        "masks-with-growth",
        lambda c: c.masked and c.has("growth"),
        problem=(
            "privacy.aggregation = 'masked' is laid out once, for classes that do not change, and "
            "growth.name = {growth.name!r} changes them"
        ),
        remedy="leave one of the two out",
        example={
            "evaluation.selection": "last",
            "privacy.aggregation": "masked",
            "growth.name": "unknown",
        },
    ),
    Rule(
        "masks-with-compression",
        lambda c: c.masked and c.has("compression"),
        problem=(
            "compression.name = {compression.name!r} makes updates smaller, which "
            "privacy.aggregation = 'masked' turns into numbers of full length"
        ),
        remedy="leave one of the two out",
        example={"privacy.aggregation": "masked", "compression.name": "8-bit"},
    ),
    Rule(
        "masks-with-start",
        lambda c: c.masked and c.starts_closed,
        problem=(
            "method.start = 'closed-form' lets clients send their sums as they are before they "
            "train, and privacy.aggregation = 'masked' is there to hide them"
        ),
        remedy="leave one of the two out",
        example={
            "privacy.aggregation": "masked",
            "method.start": "closed-form",
            "method.hidden": [],
        },
    ),
    # With these a sum of many parties could be the update of one: the others' losses would be
    # empty.
    Rule(
        "masks-with-screening",
        lambda c: c.masked and c.has("screening"),
        problem=(
            "screening.name = {screening.name!r} may leave all parties but one without samples, "
            "and privacy.aggregation = 'masked' would then show its update"
        ),
        remedy="leave one of the two out",
        example={"privacy.aggregation": "masked", "screening.name": "magnitude"},
    ),
    Rule(
        "masks-with-local-classes",
        lambda c: c.masked and first("key", _local_classes(c)),
        problem=(
            "{key} = 'local' gives parties of one class nothing to learn, and privacy.aggregation "
            "= 'masked' would then show another party's update"
        ),
        remedy="set it to 'seen'",
        example={"privacy.aggregation": "masked", "method.sce_classes": "local"},
    ),
    Rule(
        "not-deployable",
        lambda c: c.experiment.deployed or c.get("data", "part"),  # at a party too
        reasons={
            "strategy.name = {strategy.name!r} merges nothing": lambda c: not c.merging,
            "attack.name = {attack.name!r} is a simulated one": lambda c: c.has("attack"),
            "privacy.name = {privacy.name!r} with strategy.weights = {strategy.weights!r} has to "
            "know who holds how many classes": lambda c: (
                c.experiment.privacy.name == "client-level"
                and c.experiment.strategy.weights != "uniform"
            ),
            "privacy.name = 'sample-level' without privacy.aggregation = 'masked' lets parties "
            "tell the coordinator how much they hold": lambda c: (
                c.experiment.privacy.name == "sample-level" and not c.masked
            ),
            "privacy.noise_from = {privacy.noise_from!r} lets the coordinator take off the noise "
            "that parties add": lambda c: (
                c.masked and c.has("privacy") and c.experiment.privacy.noise_from == "seed"
            ),
            "defence.name = {defence.name!r} has to know who holds which classes": lambda c: (
                c.asks_scores
            ),
            "run.seeds = {run.seeds} are as many runs": lambda c: c.experiment.run.seeds > 1,
        },
        problem="engine.mode = 'deployment' is not for this experiment: {reason}",
        remedy="change it",
        example={"engine.name": "flower", "run.seeds": 2},
    ),
    Rule(
        "growth-of-parties",
        lambda c: c.has("growth") and c.experiment.deployed and c.experiment.growth.arrive,
        problem="growth.arrive is for simulations",
        remedy="leave it out: in a deployment a class arrives with its party (partition.join)",
        example={
            "evaluation.selection": "last",
            "growth.name": "unknown",
            "engine.name": "flower",
            "growth.arrive": {"digit-1-2": 3},
        },
    ),
)

START: Sequence[Rule[StartFacts]] = (
    Rule(
        "part-of-data",
        lambda s: s.get("data", "part") and not (s.deployed_here and s.experiment.deployed),
        problem=(
            "data.part = true is for one party's folder, or the coordinator's, which `fedunseen "
            "join` and `fedunseen host` read"
        ),
        remedy="leave it out",
        example={"data.name": "folder", "data.root": "party", "data.part": True},
    ),
    Rule(
        "deployment-here",
        lambda s: not s.deployed_here and s.distributed and {"starts": _elsewhere(s)},
        problem="engine.name = {engine.name!r} has its clients elsewhere, and `{starts}` starts it",
        remedy="use that command, or leave engine.name out",
        example={"engine.name": "flower"},
    ),
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
        problem="by file each party answers once, but {reason}",
        remedy="change that, or use `fedunseen host`",
        example={"engine.name": "offline"},
        needs="offline",
    ),
)
"""Asked where a federation by file is planned."""

PRESENCE: Sequence[Rule[PresenceFacts]] = (
    Rule(
        "masks-too-few-clients",
        _too_few,
        problem=(
            "privacy.aggregation = 'masked' with {clients} clients needs {least} of them in a "
            "round, and round {round} (counted from 0) has {drawn}"
        ),
        remedy="change partition or strategy.fraction",
        example={
            "privacy.aggregation": "masked",
            "evaluation.selection": "last",
            "strategy.fraction": 0.4,
        },
    ),
    Rule(
        "masks-of-changing-clients",
        _varies,
        problem=(
            "privacy.aggregation = 'masked' adds up the same clients in every round, since the "
            "difference of two sums can reveal one client"
        ),
        remedy=(
            "leave partition.join, partition.leave and strategy.fraction out, or set "
            "privacy.dropouts = 'allow'"
        ),
        example={
            "privacy.aggregation": "masked",
            "evaluation.selection": "last",
            "partition.join": {"4": 1},
        },
    ),
    Rule(
        "masks-too-many-clients",
        _too_many,
        problem=(
            "privacy.aggregation = 'masked' adds up {most} clients at most, and there are {clients}"
        ),
        remedy="lower partition.clients",
        example={
            "privacy.aggregation": "masked",
            "evaluation.selection": "last",
            "partition.kind": "iid",
            "partition.clients": 1025,
        },
    ),
)

RULES: Mapping[type[ConfigFacts], Sequence[Rule[Any]]] = {
    ConfigFacts: READING,
    StartFacts: START,
    PresenceFacts: PRESENCE,
}
