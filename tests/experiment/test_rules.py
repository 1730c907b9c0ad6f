"""What is refused: every rule's example by that rule, and its preset by none; what sections and
data refuse.
"""

import re
from dataclasses import replace

import numpy as np
import pytest

from fedunseen import Benchmark, Experiment, run
from fedunseen.core.errors import ExperimentError, FedUnseenError
from fedunseen.deploy.rules import OFFLINE
from fedunseen.experiment.parsing import SECTIONS
from fedunseen.experiment.rules import StartFacts, all_rules, check
from fedunseen.experiment.setup import Setup

ALL = {rule.code: rule for group in (*all_rules().values(), OFFLINE) for rule in group}
CLASSES = {
    f"class {i}": row for i, row in enumerate(np.random.default_rng(1).random((24, 4)).tolist())
}
SHAPES = {"images": (3, 16, 16), "sequences": (7, 3), "maps": (3, 4, 4)}


def arrays(given):
    """Return samples in memory of the kind that an example needs."""
    shape, names = SHAPES.get(given, (4,)), list(CLASSES)
    rows = np.random.default_rng(0).random((104, *shape)).astype(np.float32)
    found = Benchmark.from_arrays(
        rows[:80], np.repeat(names[:20], 4), CLASSES, test=(rows[80:], names)
    )
    if given == "images":
        return replace(found, image_shape=shape)
    if given == "undescribed":
        return replace(
            found, space=replace(found.space, semantics=np.zeros((24, 0)), attribute_names=())
        )
    if given == "untrained":
        return replace(found, train=np.array([], dtype=int), part=True)
    return found


def put_together(rule, settings, folder, preset=None):
    """Read the experiment, ask what is asked where it is started, and assemble it; nothing
    trains.
    """
    experiment = Experiment.load(preset or rule.preset, settings)
    deployed = rule.needs in ("offline", "untrained")
    check(StartFacts(experiment, deployed, rule.needs == "arrays"))
    if rule.needs == "offline":
        check(StartFacts(experiment, True), OFFLINE)
    if rule.preset != "omniglot-maml":  # whose images are not there
        benchmark = arrays(rule.needs) if rule.needs and settings else None
        Setup.of(experiment, folder, lambda *line: None, benchmark).assembled()


@pytest.mark.parametrize("preset", sorted({rule.preset for rule in ALL.values()}))
def test_a_preset_is_not_refused(preset, tmp_path):
    rule = next(rule for rule in ALL.values() if rule.preset == preset and not rule.needs)
    put_together(rule, {}, tmp_path)


NOISY = {
    "evaluation.selection": "last",
    "privacy.name": "client-level",
    "privacy.clip": 1,
    "privacy.epsilon": 8,
}
DEPLOYED = {"evaluation.selection": "last", "engine.name": "nvflare", "engine.mode": "deployment"}
START = {"method.start": "closed-form", "method.hidden": []}
SUMS = {
    "evaluation.selection": "last",
    "privacy.name": "sample-level",
    "privacy.clip": 1,
    "privacy.noise": 1,
}
EXAMPLES = [(code, rule.preset, rule.example) for code, rule in ALL.items()]
OTHER_CAUSES = [
    ("start-not-linear", "digit-pairs", {**START, "strategy.shared": ["g.*"]}),
    ("start-not-linear", "digit-pairs", {**START, "strategy.name": "local"}),
    ("section-without-merging", "digit-pairs", {**NOISY, "strategy.name": "local"}),
    ("section-without-merging", "digit-pairs", {"defence.name": "median", "strategy.name": "centralised"}),
    ("privacy-with-defence", "digit-pairs", {**NOISY, "defence.name": "norm-clip"}),
    ("threat-without-merging", "digit-pairs", {"screening.name": "magnitude", "strategy.name": "centralised"}),
    ("threat-of-episodes", "digit-pairs-few-shot", {"screening.name": "magnitude"}),
    ("defence-without-scores", "digit-pairs-few-shot", {"defence.name": "class-probes"}),
    ("choose-fixed-setting", "digit-pairs", {"evaluation.choose": {"privacy.noise": [1]}}),
    ("client-models", "digit-pairs", {"strategy.name": "local", "strategy.personal_epochs": 2}),
    ("shared-without-scores", "digit-pairs-clswgan", {"strategy.shared": ["critic.*"]}),
    ("steps-not-counted", "digit-pairs-clswgan", {"strategy.name": "scaffold"}),
    ("not-deployable", "digit-pairs", {**DEPLOYED, "strategy.name": "local"}),
    ("not-deployable", "digit-pairs", {**DEPLOYED, "attack.name": "sign-flip"}),
    ("not-deployable", "digit-pairs", {**DEPLOYED, "defence.name": "class-probes"}),
    ("not-deployable", "digit-pairs-gaussian", {**DEPLOYED, **SUMS, "data.quantization": "none"}),
]  # fmt: skip


@pytest.mark.parametrize(("code", "preset", "settings"), EXAMPLES + OTHER_CAUSES)
def test_what_a_rule_forbids_is_refused_with_its_code(code, preset, settings, tmp_path):
    with pytest.raises(ExperimentError) as error:
        put_together(ALL[code], settings, tmp_path, preset)
    assert error.value.code == code, error.value
    sentence = str(error.value)
    assert "{" not in sentence
    assert re.search(rf"\b({'|'.join(SECTIONS)})(\.[a-z_]+|\])", sentence), "it names no key"
    assert list(tmp_path.iterdir()) == []


BACKDOOR = {"attack.name": "backdoor", "attack.triggers": ["object"], "attack.rounds": "2-3"}
GROWS = {
    "growth.name": "unknown", "partition.join": {"2": 2}, "data.features": ["l2"], "method.name": "gaussian",
    "strategy.rounds": 4,
}  # fmt: skip
PRIVATE = {"privacy.name": "client-level", "privacy.clip": 1.0, "privacy.noise": 0.5}
CHOOSES = {"evaluation.selection": "validation"}
REFUSED = [
    (BACKDOOR, {"attack.clients": [0, 0]}, "attack: clients = [0, 0]: name each malicious client "
                                           "once, "),
    (BACKDOOR, {"attack.clients": [3]}, "attack.clients: there is no client 3; the 3 clients are 0 "
                                        "to 2"),
    (BACKDOOR, {"attack.clients": []}, "attack.clients: there is nothing in it: give at least one, "
                                       "or leave it out"),
    (BACKDOOR, {"attack.targets": ["zèbra"]}, "attack.targets: unknown class 'zèbra': did you mean "
                                              "'zèbre'? (known: "),
    (BACKDOOR, {"attack.triggers": ["style"]}, "attack.triggers: 'style' changes images, and "
                                               "data.name = 'folder' "),
    (BACKDOOR, {"attack.folder": "somewhere"}, "attack.folder holds images, and data.name = "
                                               "'folder' gives none "),
    (BACKDOOR, {"partition.kind": "iid"}, "attack.likeness = 'similar': there is no class that "
                                          "client 0 does not hold"),
    (GROWS, {"partition.join": {}}, "growth.name = 'unknown', but every class has its holder in "
                                    "round 0 and none "),
    (GROWS, {"growth.arrive": {"dd": 1}}, "growth.arrive: unknown class 'dd'"),
    (GROWS, {"growth.arrive": dict.fromkeys("ijkl", 1)}, "in round 0 (counted from 0) every known "
                                                         "class has a holder"),
    (GROWS, {"growth.corrected": {"1": "missing.csv"}}, "growth.corrected: missing.csv cannot be "
                                                        "read (No such file"),
    (GROWS, {"growth.corrected": {"soon": "x.csv"}}, "growth.corrected: 'soon' is not a round: "
                                                     "write its number"),
    ({}, {"growth.arrive": {"d": 1}}, "growth.arrive has no effect with growth.name = 'none': set "
                                      "growth.name to "),
    ({}, {"privacy.clip": 1.0}, "privacy: clip has no effect with name = 'none': "),
    ({}, {"privacy.name": "client-level"}, "privacy: clip is missing: "),
    ({}, {"privacy.name": "client-level", "privacy.clip": 1}, "privacy: noise and epsilon are both "
                                                              "missing: "),
    ({}, {"privacy.range": 6}, "privacy: range has no effect with aggregation = 'plain': "),
    (PRIVATE, {"privacy.delta": 0.5}, "privacy.delta = 0.5 allows to give one of the 3 clients "
                                      "away: "),
    # each value alone is fine, one combination is not
    (CHOOSES, {"evaluation.choose": {"method.sce": [0, 1], "method.kl": [0, 1]}},
     "evaluation.choose: method: sce, kl and consistency are all 0, so that there is nothing to "
     "learn: "),
    (CHOOSES, {"method.name": "eszsl", "strategy.rounds": 1, "evaluation.choose": {"strategy.rounds": [1, 3]}},
     "evaluation.choose: method.name = 'eszsl' is solved from sums, which clients send once: "),
    ({}, {"strategy.name": "fedgloss", "strategy.dual": False, "strategy.beta": 10.0},
     "strategy: beta = 10 has no effect with dual = false: "),
]  # fmt: skip


@pytest.mark.parametrize(("base", "settings", "start"), REFUSED)
def test_what_makes_no_sense_is_refused_before_anything_is_written(
    base, settings, start, make, tmp_path
):
    with pytest.raises(FedUnseenError, match=f"^{re.escape(start)}"):
        run(make({"evaluation.selection": "last", **base, **settings}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
