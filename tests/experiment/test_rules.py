"""What goes with what: every rule refuses what it is there for, in its own words, and lets pass what fits."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedunseen import Experiment
from fedunseen.core.errors import ExperimentError
from fedunseen.core.phases import SGD, Adam
from fedunseen.experiment import rules
from fedunseen.federation.partition import NEVER, Partition
from known_names import DIGITS_MAML

LAST = {"evaluation.selection": "last"}
MASKED = {"privacy.aggregation": "masked"}
ALL = (*rules.READING, *rules.ENCODING, *rules.BUILDING, *rules.PRESENCE)

# Refused when the experiment is read: rule -> preset, settings, how its sentence begins.
READ = {
    "sums_are_no_updates": (
        "digit-pairs-gaussian",
        {"defence.name": "median"},
        "defence.name = 'median' is about clients that train, but method.name = 'gaussian' is solved from sums: "
        "leave [defence] out, or choose a method that is trained, for example fedzsl",
    ),
    "sample_level_is_for_sums": (
        "digit-pairs",
        {**LAST, "privacy.name": "sample-level", "privacy.clip": 1.0, "privacy.epsilon": 1.0},
        "privacy.name = 'sample-level' is about sums over samples, but method.name = 'fedzsl' trains",
    ),
    "sums_are_sent_once": (
        "digit-pairs",
        {"method.name": "eszsl", "strategy.rounds": 3},
        "method.name = 'eszsl' is solved from sums",
    ),
    "totals_are_of_one_round": (
        "digit-pairs-gaussian",
        {"method.retention": "total", "strategy.rounds": 2, "partition.join": {"1": 1}},
        "method.retention = 'total' remembers nothing of who has sent what, so that nobody can come late or leave",
    ),
    "starting_needs_plain_sums": (
        "digit-pairs",
        {"method.start": "closed-form"},
        "method.start = 'closed-form' is one linear model for all clients to begin with: leave method.hidden out",
    ),
    "defence_and_privacy_need_merging": (
        "digit-pairs",
        {**LAST, "defence.name": "median", "strategy.name": "local"},
        "defence.name = 'median' has no effect with strategy.name = 'local'",
    ),
    "defence_needs_bounded_merging": (
        "digit-pairs",
        {"defence.name": "median", "strategy.name": "fednova"},
        "defence.name = 'median' cannot bound what strategy.name = 'fednova' merges",
    ),
    "privacy_needs_a_mean": (
        "digit-pairs",
        {**LAST, "privacy.name": "client-level", "privacy.epsilon": 8, "privacy.clip": 1, "strategy.name": "scaffold"},
        "privacy.name = 'client-level' protects the mean of the updates",
    ),
    "privacy_hides_numbers_of_samples": (
        "digit-pairs",
        {
            **LAST,
            "privacy.name": "client-level",
            "privacy.epsilon": 8,
            "privacy.clip": 1,
            "strategy.weights": "samples",
        },
        "privacy.name = 'client-level' cannot weight clients by how many samples they have",
    ),
    "privacy_counts_every_round": (
        "digit-pairs",
        {"privacy.name": "client-level", "privacy.epsilon": 8, "privacy.clip": 1},
        "privacy.name = 'client-level' counts every round",
    ),
    "masks_hide_what_is_merged": (
        "digit-pairs",
        {**MASKED, "strategy.name": "local"},
        "privacy.aggregation = 'masked' has no effect with strategy.name = 'local', which merges no clients' updates: "
        "leave it out, or choose a strategy that does",
    ),
    "masks_leave_a_sum": (
        "digit-pairs",
        {**MASKED, "strategy.name": "scaffold"},
        "privacy.aggregation = 'masked' leaves nothing but the weighted mean of the updates, but strategy.name = "
        "'scaffold' takes more than that from its clients: choose another, for example fedavg",
    ),
    "masks_and_noise": (
        "digit-pairs",
        {
            **LAST,
            **MASKED,
            "privacy.name": "client-level",
            "privacy.epsilon": 8,
            "privacy.clip": 1,
            "strategy.fraction": 0.5,
        },
        "privacy.name = 'client-level' under privacy.aggregation = 'masked' needs every client in every round, "
        "since each adds a part of the noise: set strategy.fraction to 1",
    ),
    "masks_end_defences": (
        "digit-pairs",
        {**MASKED, "defence.name": "krum"},
        "defence.name = 'krum' judges updates one by one, which privacy.aggregation = 'masked' hides: leave one of the "
        "two out",
    ),
    "masks_hide_clients_own_models": (
        "digit-pairs",
        {**MASKED, "evaluation.clients": True},
        "evaluation.clients measures every client's own model, which privacy.aggregation = 'masked' hides: leave it "
        "out",
    ),
    "masks_add_sums_once": (
        "digit-pairs-gaussian",
        {**MASKED, "strategy.rounds": 3, "partition.join": {"1": 1}},
        "privacy.aggregation = 'masked' adds up the sums of method.name = 'gaussian' once: those of 3 rounds would "
        "differ by what the party has sent that came between them: set strategy.rounds to 1, without partition.join "
        "and partition.leave",
    ),
    "masks_and_exclusive_peers": (
        DIGITS_MAML,
        {
            **MASKED,
            "method.name": "maml-mi",
            "method.exclusive": True,
            "strategy.weights": "uniform",
        },
        "method.exclusive takes a client's own share out of the merged model exactly, which the rounding of "
        "privacy.aggregation = 'masked' does not allow: leave one of the two out",
    ),
    "masks_and_growth": (
        "digit-pairs",
        {**LAST, **MASKED, "growth.name": "unknown"},
        "privacy.aggregation = 'masked' is laid out once, for classes that do not change, and growth.name = 'unknown' "
        "changes them: leave one of the two out",
    ),
    "masks_and_start": (
        "digit-pairs",
        {**MASKED, "method.start": "closed-form", "method.hidden": []},
        "method.start = 'closed-form' lets clients send their sums as they are before they train, and "
        "privacy.aggregation = 'masked' is there to hide them: leave one of the two out",
    ),
    "masks_and_compression": (
        "digit-pairs",
        {**MASKED, "compression.name": "top-k"},
        "compression.name = 'top-k' makes updates smaller, which privacy.aggregation = 'masked' turns into words that "
        "look like noise: leave one of the two out",
    ),
    "attack_and_screening_need_merging": (
        "digit-pairs",
        {**LAST, "attack.name": "sign-flip", "strategy.name": "centralised"},
        "attack.name = 'sign-flip' is about clients whose updates are merged",
    ),
    "attack_and_screening_need_labels": (
        DIGITS_MAML,
        {"attack.name": "sign-flip"},
        "attack.name = 'sign-flip' is not there for few-shot methods",
    ),
    "screening_needs_one_loss": (
        "digit-pairs-clswgan",
        {"screening.name": "magnitude"},
        "screening.name = 'magnitude' judges the features that one loss is computed from",
    ),
    "unlabelled_samples_need_class_means": (
        "digit-pairs",
        {"data.name": "folder", "data.root": "somewhere", "data.unlabelled": True},
        "method.name = 'fedzsl' keeps no class means that data.unlabelled = true could adapt: set method.name = "
        "'gaussian', or data.unlabelled = false",
    ),
    "growth_needs_descriptions_as_rows": (
        "digit-pairs",
        {**LAST, "growth.name": "unknown", "method.name": "classifier"},
        "growth.name = 'unknown' adds classes while the run trains, and method.name = 'classifier' has parameters for "
        "each class or learns without descriptions: choose a method that scores classes by their descriptions alone, "
        "for example gaussian or fedzsl",
    ),
    "growth_needs_merging": (
        "digit-pairs",
        {**LAST, "growth.name": "unknown", "strategy.name": "centralised"},
        "growth.name = 'unknown' is about classes that reach the merged model, and strategy.name = 'centralised' "
        "merges nothing: choose another, for example fedavg",
    ),
    "growth_goes_alone": (
        "digit-pairs",
        {**LAST, "growth.name": "described", "defence.name": "median"},
        "defence.name = 'median' is set up once, for classes that do not change, and growth.name = 'described' changes "
        "them: leave [defence] or [growth] out",
    ),
    "growth_reports_the_last_round": (
        "digit-pairs",
        {"growth.name": "unknown"},
        "growth.name = 'unknown' asks other questions in later rounds, so that no round can be chosen by "
        "evaluation.selection = 'validation': set it to 'last'",
    ),
    "growth_keeps_the_scale_of_descriptions": (
        "digit-pairs",
        {**LAST, "growth.name": "unknown", "data.semantics": ["centre", "l2"]},
        "data.semantics = ['centre'] is fitted to the seen classes, which growth.name = 'unknown' changes while "
        "method.name = 'fedzsl' trains: use l2 or nothing, or scale the descriptions beforehand",
    ),
    "growth_knows_its_engine": (
        "digit-pairs",
        {**LAST, "growth.name": "unknown", "engine.name": "flower"},
        "growth.name = 'unknown' is not there for engine.mode = 'simulation', whose worker processes know the classes "
        "of the first round alone: set engine.name = 'in-process', or host a deployment",
    ),
    "attack_begins_in_time": (
        "digit-pairs",
        {**LAST, "attack.name": "sign-flip", "attack.rounds": "50"},
        "attack.rounds = '50' begins after the last of 40 rounds",
    ),
    "attack_needs_the_last_round": (
        "digit-pairs",
        {"attack.name": "sign-flip", "attack.rounds": "3"},
        "attack.name = 'sign-flip' is measured round by round",
    ),
    "deployment_has_data_elsewhere": (
        "digit-pairs",
        {"engine.name": "flower", "engine.mode": "deployment", "run.seeds": 2},
        "engine.mode = 'deployment' is not for this experiment: run.seeds = 2 are as many runs: change that",
    ),
    "choosing_needs_validation": (
        "digit-pairs",
        {**LAST, "evaluation.choose": {"method.lr": [0.1]}},
        "evaluation.choose needs evaluation.selection = 'validation'",
    ),
    "stopping_needs_validation": (
        "digit-pairs",
        {**LAST, "strategy.stop_after": 5},
        "strategy.stop_after = 5 stops where validation classes show no gain, and evaluation.selection = 'last' looks "
        "at none: set it to 'validation', or leave strategy.stop_after out",
    ),
    "stopping_leaves_rounds_out": (
        "digit-pairs",
        {"strategy.stop_after": 5, "strategy.rounds": 5},
        "strategy.stop_after = 5 can stop no run of 5 rounds: lower it, or raise strategy.rounds",
    ),
    "stopping_needs_measured_rounds": (
        "digit-pairs",
        {"strategy.stop_after": 3, "evaluation.every": 4},
        "strategy.stop_after = 3 counts rounds without gain, of which evaluation.every = 4 may measure none",
    ),
    "some_runs_are_measured_every_round": (
        "digit-pairs",
        {**LAST, "evaluation.every": 2, "attack.name": "sign-flip"},
        "evaluation.every = 2 leaves rounds out, and attack.name = 'sign-flip' is measured round by round",
    ),
    "factor_needs_calibration": (
        "digit-pairs",
        {"evaluation.factor": 1.0, "evaluation.calibration": "none"},
        "evaluation.factor has no effect with evaluation.calibration = 'none'",
    ),
    "factor_needs_unseen_classes": (
        "digit-pairs-classifier",
        {"evaluation.factor": 1.0},
        "evaluation.factor has no effect on method.name = 'classifier'",
    ),
    "choosing_needs_a_run_of_its_own": (
        "omniglot-maml",
        {"evaluation.selection": "validation", "evaluation.choose": {"method.lr": [0.1]}},
        "evaluation.choose is not there for few-shot methods",
    ),
    "only_some_settings_are_chosen": (
        "digit-pairs",
        {"evaluation.choose": {"data.name": ["digits"]}},
        "evaluation.choose: 'data.name' cannot be chosen",
    ),
    "compression_changes_what_arrives": (
        "digit-pairs",
        {"compression.name": "top-k", "strategy.name": "scaffold"},
        "compression.name = 'top-k' changes updates on their way, but under strategy.name = 'scaffold' client and "
        "server each work out the same numbers from them: choose another strategy, for example fedavg",
    ),
    "attacks_forge_whole_updates": (
        "digit-pairs",
        {**LAST, "compression.name": "8-bit", "attack.name": "sign-flip"},
        "attack.name = 'sign-flip' forges updates as clients make them, and compression.name = '8-bit' changes them on "
        "their way: leave one of them out",
    ),
    "own_models_need_a_merged_one": (
        "digit-pairs-clswgan",
        {"strategy.personal_epochs": 1},
        "strategy.personal_epochs trains the merged model on at every client, but method.name = 'clswgan' would train "
        "classifiers for each client: leave it out",
    ),
    "heads_stay_somewhere": (
        "digit-pairs",
        {"strategy.head_epochs": 2},
        "strategy.head_epochs trains what stays with a client by itself, and strategy.shared = ['*'] leaves nothing "
        "there: name what travels, or leave strategy.head_epochs out",
    ),
    "late_updates_merge_by_their_mean": (
        "digit-pairs",
        {"engine.name": "buffered", "strategy.name": "scaffold"},
        "engine.name = 'buffered' merges updates as they come, but strategy.name = 'scaffold' takes more than the mean "
        "of updates that began together: change one of them",
    ),
    "exclusive_peers_need_plain_means": (
        DIGITS_MAML,
        {"method.name": "maml-mi", "method.exclusive": True, "strategy.weights": "samples"},
        "method.exclusive needs merged models that are plain means",
    ),
    "sharing_needs_merging": (
        "digit-pairs",
        {"strategy.name": "local", "strategy.shared": ["g.*"]},
        "strategy.shared has no effect with strategy.name = 'local'",
    ),
}


def load(preset="digit-pairs", **settings):
    """Load a preset; ``section__key`` is ``section.key``."""
    return Experiment.load(preset, {key.replace("__", "."): value for key, value in settings.items()})


def benchmark(kind="vectors", attributes=4, train=3, image_shape=None):
    """Stand in for what rules ask of a benchmark."""
    space = SimpleNamespace(attributes=attributes)
    return SimpleNamespace(name="it", kind=kind, space=space, train=np.arange(train), image_shape=image_shape)


def method(*optimisers, trained=False, batched=True, generates=False, private=(), training_only=()):
    """Stand in for what rules ask of a method."""
    phases = [SimpleNamespace(optimiser=one) for one in optimisers or (SGD(0.1, 0.9, 0.0),)]
    backbone = SimpleNamespace(trained=trained)
    return SimpleNamespace(
        phases=lambda: phases, backbone=backbone, batched=batched, generates=generates, private=private,
        training_only=training_only,
    )  # fmt: skip


def encoded(kind, shape, reads="images", trained=None, **settings):
    made = None if trained is None else SimpleNamespace(trained=trained)
    return rules.Encoded(load(**settings), kind, shape, reads, made)


def built(given=None, made=None, first=None, preset="digit-pairs", fits_scaling=True, **settings):
    return rules.Built(load(preset, **settings), given or benchmark(), made, first, fits_scaling)


def presence(clients, first=0, **settings):
    """Clients with a sample each, that come in round ``first``."""
    held = tuple(np.array([k]) for k in range(clients))
    partition = Partition(held, np.full(clients, first), np.full(clients, NEVER))
    return rules.Presence(load(**LATEST, **settings), partition)


LATEST = {"evaluation__selection": "last"}
PRIVATE = {**LATEST, "privacy__name": "client-level", "privacy__epsilon": 8, "privacy__clip": 1}
CONV = {"encoder__name": "conv"}
FLIP = {"encoder__augment": ["flip"], **CONV}
WEIGHT = torch.zeros(2)

# Refused later: rule -> facts that it refuses, facts that it lets pass, how its sentence begins.
LATER = {
    "images_need_an_encoder": lambda: (
        encoded("images", (3, 8, 8), None), encoded("images", (3, 8, 8), **CONV),
        "data.name = 'digit-pairs' gives images, and encoder.name = 'none' makes no features of them",
    ),
    "sequences_need_an_encoder": lambda: (
        encoded("sequences", (7, 3), None), encoded("sequences", (7, 3), "sequences", encoder__name="gru"),
        "data.name = 'digit-pairs' gives sequences, and encoder.name = 'none' makes no features of them",
    ),
    "encoder_needs_images": lambda: (
        encoded("vectors", None, **CONV), encoded("vectors", (8, 8), **CONV),
        "encoder.name = 'conv' needs images, but data.name = 'digit-pairs' gives features",
    ),
    "encoder_reads_what_there_is": lambda: (
        encoded("sequences", (7, 3), **CONV), encoded("images", (3, 8, 8), **CONV),
        "encoder.name = 'conv' reads images, but data.name = 'digit-pairs' gives sequences: name another, for "
        "example gru",
    ),
    "augmentation_needs_training": lambda: (
        encoded("images", (3, 8, 8), trained=False, **FLIP), encoded("images", (3, 8, 8), trained=True, **FLIP),
        "encoder.augment changes images while encoder.name = 'conv' trains, but here it is frozen",
    ),
    "augmentation_needs_images": lambda: (
        encoded("vectors", (8, 8), trained=True, **FLIP), encoded("images", (3, 8, 8), trained=True, **FLIP),
        "encoder.augment needs images, and data.name = 'digit-pairs' gives vectors",
    ),
    "scaling_needs_vectors": lambda: (
        encoded("images", (3, 8, 8), trained=True, data__features=["l2"], **CONV),
        encoded("images", (3, 8, 8), trained=False, data__features=["l2"], **CONV),
        "data.features scales vectors, but encoder.name = 'conv' takes images",
    ),
    "descriptions_are_there": lambda: (
        built(benchmark(attributes=0)), built(benchmark(attributes=0), preset=DIGITS_MAML),
        "data.name = 'digit-pairs' has no descriptions of its classes, which method.name = 'fedzsl' needs",
    ),
    "scaling_has_samples_to_fit": lambda: (
        built(benchmark(train=0), data__features=["centre"]),
        built(benchmark(train=0), data__features=["centre"], fits_scaling=False),
        "data.features = ['centre'] is fitted to training samples, and it has none",
    ),
    "scaling_is_of_vectors": lambda: (
        built(benchmark("maps"), data__features=["l2"]), built(data__features=["l2"]),
        "data.features scales vectors, but it has maps",
    ),
    "maps_come_from_an_encoder": lambda: (
        built(method__name="apn"), built(benchmark(image_shape=(8, 8)), method__name="apn", **CONV),
        "method.name = 'apn' needs feature maps, but data.name = 'digit-pairs' gives vectors",
    ),
    "frozen_features_stay": lambda: (
        built(made=method(trained=True), preset="digit-pairs-clswgan"),
        built(made=method(), preset="digit-pairs-clswgan"),
        "method.name = 'clswgan' learns from features that stay what they are, but encoder.name = 'none' is trained",
    ),
    "starting_needs_frozen_features": lambda: (
        built(made=method(trained=True), method__hidden=[], method__start="closed-form"),
        built(made=method(), method__hidden=[], method__start="closed-form"),
        "method.start = 'closed-form' is a linear model of features that stay what they are, but encoder.name = 'none'",
    ),
    "clients_train_as_one_batch": lambda: (
        built(made=method(batched=False), engine__mode="batched"), built(made=method(), engine__mode="batched"),
        "method.name = 'fedzsl' with encoder.name = 'none' cannot train clients as one batch",
    ),
    "steps_can_be_counted": lambda: (
        built(made=method(Adam(0.1)), strategy__name="scaffold"), built(made=method(), strategy__name="scaffold"),
        "strategy.name = 'scaffold' needs clients that use SGD, and method.name = 'fedzsl' does not",
    ),
    "what_scoring_needs_may_stay_only_where_each_client_is_measured": lambda: (
        built(made=method(), first={"f.0": WEIGHT, "g.0": WEIGHT}, strategy__shared=["g.*"], **PRIVATE),
        built(
            made=method(training_only=("f.*",)), first={"f.0": WEIGHT, "g.0": WEIGHT}, strategy__shared=["g.*"],
            **PRIVATE,
        ),
        "strategy.shared keeps 'f.0' with the clients, which scoring needs, so that each client has a model of its "
        "own, but privacy.name = 'client-level' needs a merged one: add 'f.*'",
    ),
    "screening_sees_one_loss": lambda: (
        built(made=method(SGD(1, 0, 0), SGD(1, 0, 0)), screening__name="magnitude", **LATEST),
        built(made=method(), screening__name="magnitude", **LATEST),
        "screening.name = 'magnitude' judges the features that one loss is computed from",
    ),
    "probes_have_scores": lambda: (
        built(made=method(generates=True), defence__name="class-probes"),
        built(made=method(), defence__name="class-probes"),
        "defence.name = 'class-probes' asks the merged model for scores of classes, which method.name = 'fedzsl' has "
        "only after training classifiers",
    ),
    "privacy_judges_each_alone": lambda: (
        built(made=method(), defence__name="median", **PRIVATE),
        built(made=method(), defence__name="norm-clip", defence__bound=1.0, **PRIVATE),
        "privacy.name = 'client-level' needs a defence that judges every update by itself",
    ),
    "compression_makes_something_smaller": lambda: (
        built(made=method(), first={"f.weight": torch.zeros(4, 3)}, compression__name="low-rank", compression__rank=2),
        built(made=method(), first={"f.weight": torch.zeros(9, 9)}, compression__name="low-rank", compression__rank=2),
        "compression.name = 'low-rank' and compression.rank = 2 makes no parameter of method.name = 'fedzsl' smaller",
    ),
    "privacy_has_no_statistics": lambda: (
        built(first={"f.norm.running_mean": WEIGHT}, **PRIVATE), built(first={"f.weight": WEIGHT}, **PRIVATE),
        "privacy.name = 'client-level' cannot protect running statistics ('f.norm.running_mean')",
    ),
    "somebody_is_present": lambda: (
        presence(3, first=2), presence(3), "no client with samples is present in round 0 (counted from 0)",
    ),
    "enough_for_the_defence": lambda: (
        presence(3, defence__name="bulyan"), presence(30, defence__name="bulyan"), "defence.name = 'bulyan'",
    ),
    "enough_for_masks": lambda: (
        presence(5, strategy__fraction=0.4, privacy__aggregation="masked"),
        presence(3, privacy__aggregation="masked"),
        "privacy.aggregation = 'masked' with 5 clients needs 4 of them in a round, and round 0 (counted from 0) has 2: "
        "change partition or strategy.fraction",
    ),
}  # fmt: skip


def test_every_rule_has_its_case():
    found = [rule.__name__ for rule in ALL]
    assert sorted(found) == sorted([*READ, *LATER])


@pytest.mark.parametrize("name", READ)
def test_an_experiment_is_refused_when_it_is_read(name):
    preset, settings, sentence = READ[name]
    with pytest.raises(ExperimentError) as error:
        Experiment.load(preset, settings)
    assert str(error.value).startswith(sentence)
    # It is this rule that says so, and it has nothing against the preset.
    asked = getattr(rules, name)(rules.Chosen(Experiment.load(preset)))
    assert asked is None


def said(rule, facts):
    """Return what a rule says; one asks a class that raises by itself."""
    try:
        return rule(facts)
    except ExperimentError as error:
        return str(error)


@pytest.mark.parametrize("name", LATER)
def test_what_is_found_out_later_is_refused_too(name):
    wrong, right, sentence = LATER[name]()
    rule = getattr(rules, name)
    found = said(rule, wrong)
    assert found is not None
    assert found.startswith(sentence)
    assert said(rule, right) is None


def test_the_first_rule_that_objects_is_heard():
    facts = replace(encoded("images", (3, 8, 8), None), experiment=load())
    with pytest.raises(ExperimentError, match="gives images, and encoder"):
        rules.obey(rules.ENCODING, facts)
    rules.obey(rules.ENCODING, encoded("images", (3, 8, 8), **CONV))
