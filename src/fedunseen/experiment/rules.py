"""What goes with what: every combination of choices that is refused, with the sentence that says so.

A rule is a function of the facts that returns None, or one sentence: what does not fit, and what to do about it. The
rules stand in the order in which they are asked; the first that objects is heard. Four lists, by when the facts are
known: :data:`READING` (the experiment alone), :data:`ENCODING` (and the data), :data:`BUILDING` (and the objects made
of it), :data:`PRESENCE` (and who is present in which round). A single setting that is wrong by itself is refused by its
own section (pydantic), and what one method alone knows by that method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from fedunseen.core.errors import ExperimentError
from fedunseen.core.parameters import Params, is_statistic
from fedunseen.core.phases import SGD
from fedunseen.core.registry import find
from fedunseen.data import Benchmark
from fedunseen.data.scaling import FITTED
from fedunseen.encoders import Encoder
from fedunseen.engines import DistributedSettings, EngineSettings
from fedunseen.experiment.traits import task_of
from fedunseen.federation.federation import drawn_clients
from fedunseen.federation.partition import Partition
from fedunseen.methods import Method
from fedunseen.strategies import Strategy
from fedunseen.strategies.compression import Codec
from fedunseen.strategies.peers import averages
from fedunseen.strategies.selective import kept_for_scoring, travelling
from fedunseen.tasks import Task
from fedunseen.threats.attacks import AttackSettings, parse_rounds

if TYPE_CHECKING:
    from fedunseen.experiment.schema import Experiment

__all__ = ["BUILDING", "ENCODING", "PRESENCE", "READING", "Built", "Chosen", "Encoded", "Presence", "obey"]

Facts = TypeVar("Facts")


def obey(rules: Iterable[Callable[[Facts], str | None]], facts: Facts) -> None:
    """Ask the rules in order.

    Raises:
        ExperimentError: one objects.
    """
    for rule in rules:
        if sentence := rule(facts):
            raise ExperimentError(sentence)


@dataclass(frozen=True, eq=False)
class Chosen:
    """What an experiment says, and the classes that it names."""

    experiment: Experiment

    @property
    def method(self) -> type[Method]:
        """The class of ``method.name``."""
        return find("method", self.experiment.method.name)

    @property
    def strategy(self) -> type[Strategy]:
        """The class of ``strategy.name``."""
        return find("strategy", self.experiment.strategy.name)

    @property
    def task(self) -> type[Task]:
        """What the method is for."""
        return task_of(self.experiment)

    @property
    def merging(self) -> bool:
        """Clients' updates are merged; not so under ``local`` and ``centralised``."""
        return self.strategy.merges and not self.strategy.pools

    @property
    def masked(self) -> bool:
        """The server sees the sum of the updates alone."""
        return self.experiment.privacy.aggregation == "masked"

    @property
    def name(self) -> str:
        """The method's name."""
        return self.experiment.method.name

    def named(self, *sections: str) -> Iterator[tuple[str, str]]:
        """Give those of the sections that are there, with their names."""
        for section in sections:
            name = getattr(self.experiment, section).name
            if name != "none":
                yield section, name


# --- Known when the experiment is read -------------------------------------------------------------------------------


def sums_are_no_updates(c: Chosen) -> str | None:
    """What judges or changes updates does not know what to do with sums."""
    for section, name in c.named("attack", "screening", "defence", "privacy", "compression"):
        if not c.method.trained and (section, name) == ("privacy", "client-level"):
            return (
                f"privacy.name = 'client-level' bounds what clients train, but method.name = {c.name!r} is solved from "
                "sums: set it to 'sample-level', or choose a method that is trained, for example fedzsl"
            )
        if not c.method.trained and name != "sample-level":
            return (
                f"{section}.name = {name!r} is about clients that train, but method.name = {c.name!r} is solved "
                f"from sums: leave [{section}] out, or choose a method that is trained, for example fedzsl"
            )
    return None


def sample_level_is_for_sums(c: Chosen) -> str | None:
    """A single release of sums: not of gradients, and not a second one of the same samples."""
    if c.experiment.privacy.name != "sample-level":
        return None
    if c.method.trained:
        return (
            f"privacy.name = 'sample-level' is about sums over samples, but method.name = {c.name!r} trains: set it to "
            "'client-level', or choose a method in closed form, for example gaussian"
        )
    if isinstance(c.experiment.data.quantization, int):
        return "privacy.name = 'sample-level' adds noise to float64 sums: set data.quantization to 'none'"
    if getattr(c.experiment.method, "clip_norm", None) is not None:
        return (
            "privacy.clip says how long a sample may be under privacy.name = 'sample-level': leave method.clip_norm out"
        )
    if c.experiment.strategy.rounds > 1:
        return (
            "privacy.name = 'sample-level' pays for sums that are released once, which those of "
            f"{c.experiment.strategy.rounds} rounds would not be: set strategy.rounds to 1, without partition.join and "
            "partition.leave"
        )
    return None


def sums_are_sent_once(c: Chosen) -> str | None:
    """A second round has nothing to add, unless somebody comes late."""
    moves = c.experiment.partition.join or c.experiment.partition.leave or c.experiment.growth.name != "none"
    if not c.method.trained and c.experiment.strategy.rounds > 1 and not moves:
        return (
            f"method.name = {c.name!r} is solved from sums, which clients send once: leave strategy.rounds out, or "
            "set it to 1 (more rounds are for partitions with clients that come late, partition.join)"
        )
    return None


def totals_are_of_one_round(c: Chosen) -> str | None:
    """Who sends again replaces what he has sent, which a total does not remember."""
    if getattr(c.experiment.method, "retention", "each") == "total" and c.experiment.strategy.rounds > 1:
        return (
            "method.retention = 'total' remembers nothing of who has sent what, so that nobody can come late or leave: "
            "set strategy.rounds to 1 and leave partition.join and partition.leave out, or method.retention = 'each'"
        )
    return None


def starting_needs_plain_sums(c: Chosen) -> str | None:
    """Sums are sent as they are, and added; what follows is one linear model for everybody."""
    if getattr(c.experiment.method, "start", "random") != "closed-form":
        return None
    for section, name in c.named("attack", "screening", "defence", "privacy", "growth"):
        return (
            f"method.start = 'closed-form' lets clients send sums before they train, which {section}.name = {name!r} "
            "does not know: leave one of the two out"
        )
    kept = ["method.hidden"] if getattr(c.experiment.method, "hidden", ()) else []
    kept += ["strategy.shared"] if tuple(c.experiment.strategy.shared) != ("*",) else []
    if kept or not c.strategy.merges:
        what = " and ".join(kept) or f"strategy.name = {c.experiment.strategy.name!r}, which merges nothing,"
        return f"method.start = 'closed-form' is one linear model for all clients to begin with: leave {what} out"
    return None


def defence_and_privacy_need_merging(c: Chosen) -> str | None:
    """A defence, private merging and compression work on what is merged."""
    for section, choice in c.named("defence", "privacy", "compression"):
        if not c.merging:
            return (
                f"{section}.name = {choice!r} has no effect with strategy.name = {c.experiment.strategy.name!r}, which "
                "merges no clients' updates: leave it out, or choose a strategy that does"
            )
    return None


def defence_needs_bounded_merging(c: Chosen) -> str | None:
    """Dividing by what a client says undoes what a defence has bounded."""
    if c.experiment.defence.name != "none" and c.strategy.lengths == "model":
        name = c.experiment.strategy.name
        return (
            f"defence.name = {c.experiment.defence.name!r} cannot bound what strategy.name = {name!r} merges, which "
            "divides every update by the steps that its client says it took: choose another strategy, for example "
            "fedavg"
        )
    return None


def privacy_needs_a_mean(c: Chosen) -> str | None:
    """Private merging stands in for a weighted mean of the updates."""
    for _, privacy in c.named("privacy"):
        if not c.strategy.merges_by_mean:
            return (
                f"privacy.name = {privacy!r} protects the mean of the updates, but strategy.name = "
                f"{c.experiment.strategy.name!r} takes more than that from its clients: choose fedavg, fedavg-decay, "
                "fedprox or moon"
            )
    return None


def privacy_hides_numbers_of_samples(c: Chosen) -> str | None:
    """How many samples a client has is private too."""
    for _, privacy in c.named("privacy"):
        if c.experiment.strategy.weights == "samples":
            return (
                f"privacy.name = {privacy!r} cannot weight clients by how many samples they have, which is private: "
                "set strategy.weights to 'classes' or 'uniform'"
            )
    return None


def privacy_counts_every_round(c: Chosen) -> str | None:
    """A run on validation classes costs privacy as well."""
    for _, privacy in c.named("privacy"):
        if c.experiment.evaluation.selection == "validation":
            return (
                f"privacy.name = {privacy!r} counts every round on the clients' data, and evaluation.selection = "
                "'validation' would train a run more on them: set it to 'last'"
            )
    return None


def masks_hide_what_is_merged(c: Chosen) -> str | None:
    """There is nothing to hide where nothing is merged."""
    if c.masked and not c.merging:
        return (
            f"privacy.aggregation = 'masked' has no effect with strategy.name = {c.experiment.strategy.name!r}, which "
            "merges no clients' updates: leave it out, or choose a strategy that does"
        )
    return None


def masks_leave_a_sum(c: Chosen) -> str | None:
    """The sum of the updates is all that masks leave."""
    if c.masked and c.method.trained and not c.strategy.merges_by_mean:
        return (
            "privacy.aggregation = 'masked' leaves nothing but the weighted mean of the updates, but strategy.name = "
            f"{c.experiment.strategy.name!r} takes more than that from its clients: choose another, for example fedavg"
        )
    return None


def masks_and_noise(c: Chosen) -> str | None:
    """Each client adds its part of the noise, so that enough of them have to be part of every sum."""
    e = c.experiment
    for _, privacy in c.named("privacy"):
        if c.masked and e.strategy.fraction < 1:
            return (
                f"privacy.name = {privacy!r} under privacy.aggregation = 'masked' needs every client in every round, "
                "since each adds a part of the noise: set strategy.fraction to 1"
            )
    return None


def masks_end_defences(c: Chosen) -> str | None:
    """A defence judges updates one by one."""
    for _, defence in c.named("defence"):
        if c.masked:
            return (
                f"defence.name = {defence!r} judges updates one by one, which privacy.aggregation = 'masked' hides: "
                "leave one of the two out"
            )
    return None


def masks_hide_clients_own_models(c: Chosen) -> str | None:
    """Whose update is not seen cannot be measured."""
    if c.masked and c.experiment.evaluation.clients:
        return (
            "evaluation.clients measures every client's own model, which privacy.aggregation = 'masked' hides: leave "
            "it out"
        )
    return None


def masks_add_sums_once(c: Chosen) -> str | None:
    """Two sums over all data that differ in one party say what that party has sent."""
    rounds = c.experiment.strategy.rounds
    if c.masked and not c.method.trained and rounds > 1:
        return (
            f"privacy.aggregation = 'masked' adds up the sums of method.name = {c.name!r} once: those of {rounds} "
            "rounds would differ by what the party has sent that came between them: set strategy.rounds to 1, without "
            "partition.join and partition.leave"
        )
    return None


def masks_and_exclusive_peers(c: Chosen) -> str | None:
    """A peer model without one client's share is made from the merged one exactly."""
    if c.masked and getattr(c.experiment.method, "exclusive", False):
        return (
            "method.exclusive takes a client's own share out of the merged model exactly, which the rounding of "
            "privacy.aggregation = 'masked' does not allow: leave one of the two out"
        )
    return None


def masks_and_growth(c: Chosen) -> str | None:
    """What is laid out for the classes of the first round does not fit those of the third."""
    if c.masked and c.experiment.growth.name != "none":
        return (
            "privacy.aggregation = 'masked' is laid out once, for classes that do not change, and growth.name = "
            f"{c.experiment.growth.name!r} changes them: leave one of the two out"
        )
    return None


def masks_and_start(c: Chosen) -> str | None:
    """What a start in closed form is made of is sent as it is."""
    if c.masked and getattr(c.experiment.method, "start", "random") == "closed-form":
        return (
            "method.start = 'closed-form' lets clients send their sums as they are before they train, and "
            "privacy.aggregation = 'masked' is there to hide them: leave one of the two out"
        )
    return None


def masks_and_compression(c: Chosen) -> str | None:
    """Words under masks are as many as numbers, and look like noise."""
    for _, name in c.named("compression"):
        if c.masked:
            return (
                f"compression.name = {name!r} makes updates smaller, which privacy.aggregation = 'masked' turns into "
                "words that look like noise: leave one of the two out"
            )
    return None


def attack_and_screening_need_merging(c: Chosen) -> str | None:
    """There is nobody to attack or to be attacked through where nothing is merged."""
    for section, name in c.named("attack", "screening"):
        if not c.merging:
            return (
                f"{section}.name = {name!r} is about clients whose updates are merged, which strategy.name = "
                f"{c.experiment.strategy.name!r} does not do: choose another strategy, for example fedavg"
            )
    return None


def attack_and_screening_need_labels(c: Chosen) -> str | None:
    """In an episode a sample's label is its place."""
    for section, name in c.named("attack", "screening"):
        if not c.task.attackable:
            return (
                f"{section}.name = {name!r} is not there for {c.task.name} methods such as method.name = {c.name!r}, "
                f"whose classes are told by their place in an episode: leave [{section}] out"
            )
    return None


def compression_changes_what_arrives(c: Chosen) -> str | None:
    """What client and server both work out from an update would differ."""
    for _, name in c.named("compression"):
        if c.strategy.mirrors:
            return (
                f"compression.name = {name!r} changes updates on their way, but under strategy.name = "
                f"{c.experiment.strategy.name!r} client and server each work out the same numbers from them: choose "
                "another strategy, for example fedavg"
            )
    return None


def attacks_forge_whole_updates(c: Chosen) -> str | None:
    """An attack changes an update as its client has made it, not its short form."""
    for _, name in c.named("attack"):
        if c.experiment.compression.name != "none":
            return (
                f"attack.name = {name!r} forges updates as clients make them, and compression.name = "
                f"{c.experiment.compression.name!r} changes them on their way: leave one of them out"
            )
    return None


def own_models_need_a_merged_one(c: Chosen) -> str | None:
    """A client's own model goes on from the merged one, where the client's samples are."""
    e = c.experiment
    if e.strategy.personal_epochs is None:
        return None
    reasons = {
        f"strategy.name = {e.strategy.name!r} merges none": not c.merging,
        f"method.name = {c.name!r} is solved from sums, not trained": not c.method.trained,
        f"method.name = {c.name!r} would train classifiers for each client": c.method.generates,
        f"{c.task.name} methods measure no client's own model": not c.task.personalizes,
        f"engine.name = {e.engine.name!r} has the clients' samples elsewhere": (
            isinstance(e.engine, DistributedSettings)
        ),
        f"attack.name = {e.attack.name!r} has clients that are not honest": e.attack.name != "none",
        "[growth] changes who holds what from round to round": e.growth.name != "none",
    }
    wrong = next((reason for reason, there in reasons.items() if there), None)
    return wrong and f"strategy.personal_epochs trains the merged model on at every client, but {wrong}: leave it out"


def heads_stay_somewhere(c: Chosen) -> str | None:
    """FedRep trains in turn what stays and what travels: there has to be something of both, and one loss."""
    e = c.experiment
    if e.strategy.head_epochs is None:
        return None
    reasons = {
        f"method.name = {c.name!r} is solved from sums: leave it out": not c.method.trained,
        f"method.name = {c.name!r} has several phases of its own: leave it out": c.method.generates,
        f"strategy.shared = {list(e.strategy.shared)} leaves nothing there: name what travels, or leave "
        "strategy.head_epochs out": "*" in e.strategy.shared or not c.merging,
    }
    wrong = next((reason for reason, there in reasons.items() if there), None)
    return wrong and f"strategy.head_epochs trains what stays with a client by itself, and {wrong}"


def late_updates_merge_by_their_mean(c: Chosen) -> str | None:
    """Buffered merging takes what comes, of whatever age, from everybody."""
    e = c.experiment
    buffer = getattr(e.engine, "buffer", None)
    if buffer is None:
        return None
    others = [f"{section}.name = {name!r}" for section, name in c.named("attack", "defence", "privacy", "growth")]
    exclusive = getattr(e.method, "exclusive", False)
    reasons = {
        f"strategy.name = {e.strategy.name!r} merges nothing": not c.merging,
        f"strategy.name = {e.strategy.name!r} takes more than the mean of updates that began together": (
            not c.strategy.merges_by_mean or c.strategy.mirrors
        ),
        f"method.name = {c.name!r} is solved from sums": not c.method.trained,
        "method.exclusive asks who had a share in the last merge": exclusive,
        f"strategy.fraction = {e.strategy.fraction:g} lets some clients rest": e.strategy.fraction != 1,
        "clients come and go (partition.join, partition.leave)": bool(e.partition.join or e.partition.leave),
        f"{', '.join(others)} is about rounds of clients that began together": bool(others),
        "privacy.aggregation = 'masked' adds up the updates of one round, from one model": c.masked,
    }
    wrong = next((reason for reason, there in reasons.items() if there), None)
    what = "engine.name = 'buffered'" if e.engine.name == "buffered" else f"engine.buffer = {buffer}"
    return wrong and f"{what} merges updates as they come, but {wrong}: change one of them"


def exclusive_peers_need_plain_means(c: Chosen) -> str | None:
    """A client finds the model of all others from the merged one only if that is a plain mean."""
    if not getattr(c.experiment.method, "exclusive", False):
        return None
    guarded = list(c.named("defence", "privacy", "compression"))
    if not guarded and averages(c.strategy(c.experiment.strategy)):
        return None
    return (
        "method.exclusive needs merged models that are plain means of the clients': set strategy.name to fedavg, "
        "fedprox or moon, strategy.weights = 'uniform', strategy.server_lr = 1 and strategy.update_scale = 1, "
        "without [defence], [privacy] and [compression]"
    )


def sharing_needs_merging(c: Chosen) -> str | None:
    """Where nothing travels, nothing can be kept from travelling."""
    if not c.strategy.merges and c.experiment.strategy.shared != ("*",):
        return (
            f"strategy.shared has no effect with strategy.name = {c.experiment.strategy.name!r}, where nothing "
            "travels: set it to ['*']"
        )
    return None


def screening_needs_one_loss(c: Chosen) -> str | None:
    """Screening judges the features that one loss is computed from."""
    for _, name in c.named("screening"):
        if c.method.generates or not c.method.trained:
            return (
                f"screening.name = {name!r} judges the features that one loss is computed from, and method.name = "
                f"{c.name!r} has several or none: choose another method, for example fedzsl"
            )
    return None


def attack_begins_in_time(c: Chosen) -> str | None:
    """An attack must begin before the run ends."""
    attack, rounds = c.experiment.attack, c.experiment.strategy.rounds
    if isinstance(attack, AttackSettings):
        first = min((first for first, _ in parse_rounds(attack.rounds)), default=1)
        if first > rounds:
            return (
                f"attack.rounds = {attack.rounds!r} begins after the last of {rounds} rounds: "
                "let the attack begin earlier, or run more rounds (strategy.rounds)"
            )
    return None


def attack_needs_the_last_round(c: Chosen) -> str | None:
    """Choosing a round could choose one before the attack."""
    attack, selection = c.experiment.attack, c.experiment.evaluation.selection
    if isinstance(attack, AttackSettings) and selection != "last":
        return (
            f"attack.name = {attack.name!r} is measured round by round to the last one, and with "
            f"evaluation.selection = {selection!r} a round before the attack could be chosen: "
            "set evaluation.selection to 'last'"
        )
    return None


def deployment_has_data_elsewhere(c: Chosen) -> str | None:
    """Refuse what needs all data in one place, or all parties in one process."""
    e = c.experiment
    if not (isinstance(e.engine, DistributedSettings) and e.engine.mode == "deployment"):
        return None
    reasons = {
        f"strategy.name = {e.strategy.name!r} merges nothing": not c.merging,
        f"attack.name = {e.attack.name!r} is a simulated one": e.attack.name != "none",
        f"privacy.name = {e.privacy.name!r} with strategy.weights = {e.strategy.weights!r} has to know "
        "who holds how many classes": e.privacy.name == "client-level" and e.strategy.weights != "uniform",
        "privacy.name = 'sample-level' without privacy.aggregation = 'masked' lets parties tell the coordinator how "
        "much they hold": e.privacy.name == "sample-level" and not c.masked,
        f"privacy.noise_from = {e.privacy.noise_from!r} lets the coordinator take off the noise that parties add": (
            c.masked and e.privacy.name != "none" and e.privacy.noise_from == "seed"
        ),
        f"defence.name = {e.defence.name!r} has to know who holds which classes": (
            e.defence.name != "none" and find("defence", e.defence.name).asks_scores
        ),
        f"run.seeds = {e.run.seeds} are as many runs": e.run.seeds > 1,
    }
    wrong = next((reason for reason, there in reasons.items() if there), None)
    return wrong and f"engine.mode = 'deployment' is not for this experiment: {wrong}: change that"


def choosing_needs_validation(c: Chosen) -> str | None:
    """Settings are chosen on validation classes."""
    if c.experiment.evaluation.choose and c.experiment.evaluation.selection != "validation":
        return "evaluation.choose needs evaluation.selection = 'validation': settings are chosen there"
    return None


def stopping_needs_validation(c: Chosen) -> str | None:
    """Gain is measured on validation classes, never on the test set."""
    selection, patience = c.experiment.evaluation.selection, c.experiment.strategy.stop_after
    if patience is not None and selection != "validation":
        return (
            f"strategy.stop_after = {patience} stops where validation classes show no gain, and evaluation.selection = "
            f"{selection!r} looks at none: set it to 'validation', or leave strategy.stop_after out"
        )
    return None


def stopping_leaves_rounds_out(c: Chosen) -> str | None:
    """A patience as long as the run stops nothing."""
    patience, rounds = c.experiment.strategy.stop_after, c.experiment.strategy.rounds
    if patience is not None and patience >= rounds:
        return (
            f"strategy.stop_after = {patience} can stop no run of {rounds} rounds: lower it, or raise strategy.rounds"
        )
    return None


def stopping_needs_measured_rounds(c: Chosen) -> str | None:
    """Rounds without gain are counted where gain is measured."""
    patience, every = c.experiment.strategy.stop_after, c.experiment.evaluation.every
    if patience is not None and every is not None and patience < every:
        return (
            f"strategy.stop_after = {patience} counts rounds without gain, of which evaluation.every = {every} may "
            "measure none: let evaluation.every be at most strategy.stop_after"
        )
    return None


def some_runs_are_measured_every_round(c: Chosen) -> str | None:
    """An attack, and classes that arrive, are followed round by round."""
    e = c.experiment
    if e.evaluation.every is None or e.evaluation.every == 1:
        return None
    for section, name in (("attack", e.attack.name), ("growth", e.growth.name)):
        if name != "none":
            return (
                f"evaluation.every = {e.evaluation.every} leaves rounds out, and {section}.name = {name!r} is measured "
                "round by round: leave evaluation.every out"
            )
    return None


def factor_needs_calibration(c: Chosen) -> str | None:
    """A fixed factor is a calibration."""
    if c.experiment.evaluation.factor is not None and c.experiment.evaluation.calibration == "none":
        return "evaluation.factor has no effect with evaluation.calibration = 'none': leave one out"
    return None


def factor_needs_unseen_classes(c: Chosen) -> str | None:
    """A factor balances seen against unseen classes."""
    if c.experiment.evaluation.factor is not None and not c.method.zero_shot:
        return f"evaluation.factor has no effect on method.name = {c.name!r}, which knows no unseen class"
    return None


def choosing_needs_a_run_of_its_own(c: Chosen) -> str | None:
    """Only a task that chooses in a run of its own can compare settings there."""
    if c.experiment.evaluation.choose and not c.task.chooses_settings:
        return (
            f"evaluation.choose is not there for {c.task.name} methods such as method.name = {c.name!r}: compare "
            "settings with a sweep, on validation classes (evaluation.selection = 'validation')"
        )
    return None


def only_some_settings_are_chosen(c: Chosen) -> str | None:
    """What is compared must be asked the same questions on the same data."""
    for key, values in c.experiment.evaluation.choose.items():
        if key.split(".")[0] in ("run", "evaluation", "data", "encoder", "partition", "privacy"):
            return f"evaluation.choose: {key!r} cannot be chosen; only method, strategy, defence and engine can"
        if not values:
            return f"evaluation.choose: {key!r} has no value to choose from: give it a few"
    return None


def unlabelled_samples_need_class_means(c: Chosen) -> str | None:
    """Only one merged model of class means is adapted during a run."""
    if not getattr(c.experiment.data, "unlabelled", False):
        return None
    if c.experiment.method.name != "gaussian":
        return (
            f"method.name = {c.experiment.method.name!r} keeps no class means that data.unlabelled = true could adapt: "
            "set method.name = 'gaussian', or data.unlabelled = false"
        )
    if not c.merging or c.experiment.growth.name != "none" or c.experiment.privacy.name != "none":
        return (
            "data.unlabelled = true adapts one merged model, without [growth] and [privacy] noise: set "
            "data.unlabelled = false, and call fedunseen adapt on the finished run"
        )
    if c.experiment.engine.name == "offline":
        return (
            "data.unlabelled = true takes several messages from each party, and by file there is one: set "
            "data.unlabelled = false, and call fedunseen adapt on the finished run"
        )
    return None


def growth_needs_descriptions_as_rows(c: Chosen) -> str | None:
    """A class can only come later where no parameter is about a class."""
    if c.experiment.growth.name != "none" and not c.method.grows:
        return (
            f"growth.name = {c.experiment.growth.name!r} adds classes while the run trains, and method.name = "
            f"{c.name!r} has parameters for each class or learns without descriptions: choose a method that scores "
            "classes by their descriptions alone, for example gaussian or fedzsl"
        )
    return None


def growth_needs_merging(c: Chosen) -> str | None:
    """Only a merged model meets the classes of others."""
    if c.experiment.growth.name != "none" and not c.merging:
        return (
            f"growth.name = {c.experiment.growth.name!r} is about classes that reach the merged model, and "
            f"strategy.name = {c.experiment.strategy.name!r} merges nothing: choose another, for example fedavg"
        )
    return None


def growth_goes_alone(c: Chosen) -> str | None:
    """What is set up for the classes of the first round does not know those of the third."""
    for section, name in c.named("attack", "screening", "defence", "privacy"):
        if c.experiment.growth.name != "none":
            return (
                f"{section}.name = {name!r} is set up once, for classes that do not change, and growth.name = "
                f"{c.experiment.growth.name!r} changes them: leave [{section}] or [growth] out"
            )
    return None


def growth_reports_the_last_round(c: Chosen) -> str | None:
    """Rounds with other classes cannot be compared."""
    e = c.experiment
    if e.growth.name != "none" and e.evaluation.selection != "last":
        return (
            f"growth.name = {e.growth.name!r} asks other questions in later rounds, so that no round can be chosen by "
            f"evaluation.selection = {e.evaluation.selection!r}: set it to 'last'"
        )
    return None


def growth_keeps_the_scale_of_descriptions(c: Chosen) -> str | None:
    """A scaling that is fitted to the seen classes changes with them."""
    e = c.experiment
    fitted = [step for step in e.data.semantics if step in ("centre", "standard", "min-max")]
    if e.growth.name != "none" and c.method.trained and fitted:
        return (
            f"data.semantics = {fitted} is fitted to the seen classes, which growth.name = {e.growth.name!r} changes "
            f"while method.name = {c.name!r} trains: use l2 or nothing, or scale the descriptions beforehand"
        )
    return None


def growth_knows_its_engine(c: Chosen) -> str | None:
    """Worker processes are told the experiment, not the round's classes; parties bring classes, no plan does."""
    e = c.experiment
    if e.growth.name == "none" or e.engine.name == "in-process":
        return None
    if not isinstance(e.engine, DistributedSettings):
        return (
            f"growth.name = {e.growth.name!r} changes the classes between rounds, and engine.name = {e.engine.name!r} "
            "has clients that train across them: set engine.name = 'in-process'"
        )
    if e.engine.mode == "simulation":
        return (
            f"growth.name = {e.growth.name!r} is not there for engine.mode = 'simulation', whose worker processes know "
            "the classes of the first round alone: set engine.name = 'in-process', or host a deployment"
        )
    if e.growth.arrive:
        return (
            "growth.arrive is for simulations: in a deployment a class arrives with the party that brings it, which "
            "partition.join lets in later"
        )
    return None


READING: Sequence[Callable[[Chosen], str | None]] = (
    sums_are_no_updates,
    sample_level_is_for_sums,
    sums_are_sent_once,
    totals_are_of_one_round,
    starting_needs_plain_sums,
    defence_and_privacy_need_merging,
    defence_needs_bounded_merging,
    privacy_needs_a_mean,
    privacy_hides_numbers_of_samples,
    privacy_counts_every_round,
    masks_hide_what_is_merged,
    masks_leave_a_sum,
    masks_and_noise,
    masks_end_defences,
    masks_hide_clients_own_models,
    masks_add_sums_once,
    masks_and_exclusive_peers,
    masks_and_growth,
    masks_and_compression,
    masks_and_start,
    attack_and_screening_need_merging,
    attack_and_screening_need_labels,
    screening_needs_one_loss,
    attack_begins_in_time,
    attack_needs_the_last_round,
    deployment_has_data_elsewhere,
    choosing_needs_validation,
    stopping_needs_validation,
    stopping_leaves_rounds_out,
    stopping_needs_measured_rounds,
    some_runs_are_measured_every_round,
    factor_needs_calibration,
    factor_needs_unseen_classes,
    choosing_needs_a_run_of_its_own,
    only_some_settings_are_chosen,
    compression_changes_what_arrives,
    attacks_forge_whole_updates,
    own_models_need_a_merged_one,
    heads_stay_somewhere,
    late_updates_merge_by_their_mean,
    exclusive_peers_need_plain_means,
    sharing_needs_merging,
    unlabelled_samples_need_class_means,
    growth_needs_descriptions_as_rows,
    growth_needs_merging,
    growth_goes_alone,
    growth_reports_the_last_round,
    growth_keeps_the_scale_of_descriptions,
    growth_knows_its_engine,
)


# --- Known when the data are there -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Encoded(Chosen):
    """An experiment's encoder and what it is given.

    Attributes:
        kind: what a sample is: ``vectors``, ``sequences``, ``maps`` or ``images``.
        image_shape: (height, width) or (channels, height, width) of images, None if there are none.
        reads: what the encoder reads, ``images`` or ``sequences``; None without an encoder.
        made: the encoder, once it is made.
    """

    kind: str
    image_shape: Sequence[int] | None
    reads: str | None = None
    made: Encoder | None = None

    @property
    def encoder(self) -> str:
        """The encoder's name."""
        return self.experiment.encoder.name

    @property
    def data(self) -> str:
        """The benchmark's name."""
        return self.experiment.data.name


def images_need_an_encoder(e: Encoded) -> str | None:
    """Images are no features."""
    if e.encoder == "none" and e.kind == "images":
        return (
            f"data.name = {e.data!r} gives images, and encoder.name = 'none' makes no features of "
            "them: name an encoder, for example conv (trained) or tflite (frozen)"
        )
    return None


def sequences_need_an_encoder(e: Encoded) -> str | None:
    """Sequences are no features."""
    if e.encoder == "none" and e.kind == "sequences":
        return (
            f"data.name = {e.data!r} gives sequences, and encoder.name = 'none' makes no features of "
            "them: name an encoder that reads them, for example gru"
        )
    return None


def encoder_needs_images(e: Encoded) -> str | None:
    """An encoder does not read features."""
    if e.encoder != "none" and e.kind != "sequences" and e.image_shape is None:
        return (
            f"encoder.name = {e.encoder!r} needs images, but data.name = {e.data!r} gives features: "
            "set encoder.name = 'none'"
        )
    return None


def encoder_reads_what_there_is(e: Encoded) -> str | None:
    """Images and sequences have encoders of their own."""
    given = "sequences" if e.kind == "sequences" else "images"
    if e.reads is not None and e.reads != given:
        example = "gru" if given == "sequences" else "conv4"
        return (
            f"encoder.name = {e.encoder!r} reads {e.reads}, but data.name = {e.data!r} gives {given}: "
            f"name another, for example {example}"
        )
    return None


def augmentation_needs_training(e: Encoded) -> str | None:
    """What a frozen encoder makes is made once."""
    if e.made is not None and e.experiment.encoder.augment and not e.made.trained:
        return (
            f"encoder.augment changes images while encoder.name = {e.encoder!r} trains, but here it is frozen: leave "
            "it out"
        )
    return None


def augmentation_needs_images(e: Encoded) -> str | None:
    """Vectors and sequences cannot be flipped."""
    if e.made is not None and e.experiment.encoder.augment and len(e.image_shape or ()) == 2:
        return f"encoder.augment needs images, and data.name = {e.data!r} gives vectors: leave it out"
    return None


def scaling_needs_vectors(e: Encoded) -> str | None:
    """A trained encoder takes images as they are."""
    if e.made is not None and e.experiment.data.features and e.made.trained:
        return f"data.features scales vectors, but encoder.name = {e.encoder!r} takes images: leave it out"
    return None


ENCODING: Sequence[Callable[[Encoded], str | None]] = (
    images_need_an_encoder,
    sequences_need_an_encoder,
    encoder_needs_images,
    encoder_reads_what_there_is,
    augmentation_needs_training,
    augmentation_needs_images,
    scaling_needs_vectors,
)


# --- Known when the objects are made ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Built(Chosen):
    """What an experiment's choices have become.

    Attributes:
        benchmark: the samples, encoded.
        made: the method.
        first: the parameters before round 0.
        fits_scaling: the scaling of features is to be fitted to training samples here.
    """

    benchmark: Benchmark
    made: Method | None = None
    first: Params | None = None
    fits_scaling: bool = True


def descriptions_are_there(b: Built) -> str | None:
    """A class that nobody holds can only be described."""
    if b.task.needs_descriptions and not b.benchmark.space.attributes:
        return (
            f"data.name = {b.experiment.data.name!r} has no descriptions of its classes, which method.name = "
            f"{b.name!r} needs: name a few-shot method, for example maml or protonet"
        )
    return None


def scaling_is_of_vectors(b: Built) -> str | None:
    """Maps and images stay what they are."""
    if b.benchmark.kind != "vectors" and b.experiment.data.features:
        return f"data.features scales vectors, but {b.benchmark.name} has {b.benchmark.kind}: leave it out"
    return None


def scaling_has_samples_to_fit(b: Built) -> str | None:
    """A coordinator has no training samples."""
    steps = b.experiment.data.features or ()
    if b.fits_scaling and not len(b.benchmark.train) and set(FITTED) & set(steps):
        return (
            f"data.features = {list(steps)} is fitted to training samples, and {b.benchmark.name} has none: use l2 or "
            "x10, or give the coordinator some training samples of its own"
        )
    return None


def maps_come_from_an_encoder(b: Built) -> str | None:
    """A method on maps cannot take vectors."""
    encoded = b.experiment.encoder.name != "none" and b.benchmark.image_shape is not None
    if b.method.takes == "maps" and b.benchmark.kind == "vectors" and not encoded:
        return (
            f"method.name = {b.name!r} needs feature maps, but data.name = {b.experiment.data.name!r} gives vectors: "
            "name an encoder that makes maps of images (conv, resnet, vit, tflite), or a method on vectors, "
            "for example distzsl"
        )
    return None


def frozen_features_stay(b: Built) -> str | None:
    """A generator learns features that must not move."""
    if b.made is not None and b.method.frozen and b.made.backbone.trained:
        return (
            f"method.name = {b.name!r} learns from features that stay what they are, but encoder.name = "
            f"{b.experiment.encoder.name!r} is trained: name a frozen one, for example tflite, or none"
        )
    return None


def starting_needs_frozen_features(b: Built) -> str | None:
    """What sums are over must not change."""
    begins = getattr(b.experiment.method, "start", "random") == "closed-form"
    if begins and b.made is not None and b.made.backbone.trained:
        return (
            "method.start = 'closed-form' is a linear model of features that stay what they are, but encoder.name = "
            f"{b.experiment.encoder.name!r} is trained: name a frozen one, for example tflite"
        )
    return None


def clients_train_as_one_batch(b: Built) -> str | None:
    """Losses that are not pure cannot be mapped over clients."""
    engine = b.experiment.engine
    if b.made is not None and isinstance(engine, EngineSettings) and engine.mode == "batched" and not b.made.batched:
        return (
            f"method.name = {b.name!r} with encoder.name = {b.experiment.encoder.name!r} cannot train clients "
            "as one batch: set engine.mode to 'auto'"
        )
    return None


def steps_can_be_counted(b: Built) -> str | None:
    """A strategy that divides by steps needs SGD."""
    if b.made is None or b.strategy.lengths != "memory":
        return None
    if all(isinstance(phase.optimiser, SGD) for phase in b.made.phases()):
        return None
    other = "choose another strategy, for example fedavg"
    remedy = "set method.optimiser = 'sgd'" if hasattr(b.experiment.method, "optimiser") else other
    return (
        f"strategy.name = {b.experiment.strategy.name!r} needs clients that use SGD, and method.name = "
        f"{b.name!r} does not: {remedy}"
    )


def what_scoring_needs_may_stay_only_where_each_client_is_measured(b: Built) -> str | None:
    """Where scoring needs what stays with the clients, each has its own model, and nothing may need a merged one."""
    if b.made is None or b.first is None or not b.strategy.merges:
        return None
    e = b.experiment
    travel = travelling(list(b.first), e.strategy.shared, b.made.private)
    needed = kept_for_scoring(b.first, travel, (*b.made.private, *b.made.training_only))
    if not needed:
        return None
    guarded = [f"{section}.name = {name!r}" for section, name in b.named("attack", "privacy", "growth")]
    asking = e.defence.name != "none" and find("defence", e.defence.name).asks_scores
    reasons = {
        f"method.name = {b.name!r} makes classifiers from a merged model": b.made.generates,
        f"method.name = {b.name!r} is solved from merged sums": not b.method.trained,
        f"engine.name = {e.engine.name!r} has the clients' models elsewhere": isinstance(e.engine, DistributedSettings),
        "strategy.personal_epochs trains a merged model on": e.strategy.personal_epochs is not None,
        f"{' and '.join(guarded)} needs a merged one": bool(guarded),
        f"defence.name = {e.defence.name!r} asks a merged one for scores": asking,
    }
    wrong = next((reason for reason, there in reasons.items() if there), None)
    return wrong and (
        f"strategy.shared keeps {needed[0]!r} with the clients, which scoring needs, so that each client has a model "
        f"of its own, but {wrong}: add '{needed[0].split('.')[0]}.*'"
    )


def screening_sees_one_loss(b: Built) -> str | None:
    """Screening judges the features that one loss is computed from."""
    if b.made is not None and b.experiment.screening.name != "none" and len(b.made.phases()) != 1:
        return (
            f"screening.name = {b.experiment.screening.name!r} judges the features that one loss is computed from, and "
            f"method.name = {b.name!r} has several: choose another method, for example fedzsl"
        )
    return None


def probes_have_scores(b: Built) -> str | None:
    """Some defences ask the merged model itself for scores."""
    name = b.experiment.defence.name
    if b.made is None or name == "none" or not find("defence", name).asks_scores:
        return None
    generates = b.made.generates
    if not (generates or b.task.name != "zero-shot"):
        return None
    first = "training classifiers" if generates else "learning them from examples"
    return (
        f"defence.name = {name!r} asks the merged model for scores of classes, which method.name = "
        f"{b.name!r} has only after {first}: choose another defence"
    )


def privacy_judges_each_alone(b: Built) -> str | None:
    """Under private merging no rule may look at several updates."""
    e = b.experiment
    if b.made is None or e.privacy.name == "none" or e.defence.name == "none":
        return None
    if not find("defence", e.defence.name)(e.defence).each_alone:
        return (
            f"privacy.name = {e.privacy.name!r} needs a defence that judges every update by itself, which "
            f"defence.name = {e.defence.name!r} does not as it is set: choose 'norm-clip' with a "
            "defence.bound, or 'none'"
        )
    return None


def privacy_has_no_statistics(b: Built) -> str | None:
    """Noise may turn a variance negative."""
    if b.first is None or b.experiment.privacy.name == "none":
        return None
    statistics = [name for name in b.first if is_statistic(name)]
    if not statistics:
        return None
    return (
        f"privacy.name = {b.experiment.privacy.name!r} cannot protect running statistics ({statistics[0]!r}), which "
        "noise may turn negative: choose an encoder without BatchNorm, for example encoder.norm = 'group'"
    )


def compression_makes_something_smaller(b: Built) -> str | None:
    """A form that every parameter is too small for, or that keeps too much, saves nothing."""
    settings = b.experiment.compression
    if b.made is None or b.first is None or settings.name == "none":
        return None
    codec = Codec(settings)
    if any(codec.parts(name, value) is not None for name, value in b.first.items()):
        return None
    cause = {
        "top-k": f" and compression.keep = {settings.share:g}",
        "low-rank": f" and compression.rank = {settings.columns}",
    }
    return (
        f"compression.name = {settings.name!r}{cause.get(settings.name, '')} makes no parameter of method.name = "
        f"{b.name!r} smaller: lower the setting, choose another form, or leave [compression] out"
    )


BUILDING: Sequence[Callable[[Built], str | None]] = (
    descriptions_are_there,
    scaling_has_samples_to_fit,
    scaling_is_of_vectors,
    maps_come_from_an_encoder,
    frozen_features_stay,
    starting_needs_frozen_features,
    clients_train_as_one_batch,
    steps_can_be_counted,
    what_scoring_needs_may_stay_only_where_each_client_is_measured,
    screening_sees_one_loss,
    probes_have_scores,
    privacy_judges_each_alone,
    privacy_has_no_statistics,
    compression_makes_something_smaller,
)


# --- Known when it is clear who takes part ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Presence(Chosen):
    """Who is present in which round."""

    partition: Partition

    def changes(self) -> list[int]:
        """Return the rounds (counted from 0) before which somebody comes or goes, and round 0."""
        partition = self.partition
        found = np.unique(np.concatenate([[0], partition.first, partition.last]))
        return [int(round) for round in found if round < self.experiment.strategy.rounds]


def somebody_is_present(m: Presence) -> str | None:
    """A round needs a client."""
    for round in m.changes():
        if not m.partition.present(round):
            return (
                f"no client with samples is present in round {round} (counted from 0): "
                "change partition.join or partition.leave"
            )
    return None


def enough_for_the_defence(m: Presence) -> str | None:
    """A rule that compares updates needs some of them; under private merging it judges each by itself."""
    e = m.experiment
    if e.defence.name == "none" or e.privacy.name != "none":
        return None
    defence = find("defence", e.defence.name)(e.defence)
    for round in m.changes():
        defence.check(drawn_clients(e.strategy.fraction, len(m.partition.present(round))), round)
    return None


def enough_for_masks(m: Presence) -> str | None:
    """A sum takes a threshold of clients, and two sums of nearly the same clients can reveal one of them."""
    if not m.masked or (getattr(m.experiment.data, "part", False) and not m.partition.remote):
        return None  # a party does not have the list of the others
    from fedunseen.secagg.enrolment import colluders, threshold

    clients, fraction = len(m.partition.clients), m.experiment.strategy.fraction
    least = threshold(clients, colluders(clients))
    rounds = {round: m.partition.present(round) for round in m.changes()}
    for round, present in rounds.items():
        if (drawn := drawn_clients(fraction, len(present))) < least:
            return (
                f"privacy.aggregation = 'masked' with {clients} clients needs {least} of them in a round, and round "
                f"{round} (counted from 0) has {drawn}: change partition or strategy.fraction"
            )
    varies = fraction < 1 or len({tuple(present) for present in rounds.values()}) > 1
    if varies and m.experiment.privacy.dropouts == "refuse":
        return (
            "privacy.aggregation = 'masked' adds up the same clients in every round, since the difference of two sums "
            "can reveal one client: leave partition.join, partition.leave and strategy.fraction out, or set "
            "privacy.dropouts = 'allow'"
        )
    return None


PRESENCE: Sequence[Callable[[Presence], str | None]] = (
    somebody_is_present,
    enough_for_the_defence,
    enough_for_masks,
)


def check_engine(experiment: Experiment, deployed: bool) -> None:
    """Refuse to run here what is meant for parties elsewhere, or the other way round.

    Raises:
        ExperimentError: says what to do instead.
    """
    if not deployed and getattr(experiment.data, "part", False):
        raise ExperimentError(
            "data.part = true is for one party's folder, or the coordinator's, which `fedunseen join` and `fedunseen "
            "host` read: leave it out"
        )
    settings = experiment.engine
    if not deployed and isinstance(settings, DistributedSettings) and settings.mode == "deployment":
        raise ExperimentError(
            "engine.mode = 'deployment' waits for parties elsewhere, which `fedunseen host` does: use that, or set "
            "engine.mode to 'simulation'"
        )


def check_arrays(experiment: Experiment, benchmark: Benchmark | None) -> None:
    """Refuse arrays of an experiment that names other data, and engines whose processes could not read them.

    Raises:
        ExperimentError: says what to set.
    """
    if benchmark is None:
        return
    if experiment.data.name != "arrays":
        raise ExperimentError(
            f"a benchmark is given, but data.name = {experiment.data.name!r} names other data: set it to 'arrays'"
        )
    if experiment.engine.name != "in-process":
        raise ExperimentError(
            f"engine.name = {experiment.engine.name!r} works in processes of its own, which have no arrays of this "
            "one: set it to 'in-process'"
        )
