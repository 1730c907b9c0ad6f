import os
import re
import tomllib
from pathlib import Path

import pytest

from fedunseen import Experiment
from fedunseen.core.errors import ExperimentError
from fedunseen.core.presets import preset_names, preset_text
from fedunseen.core.registry import find, names, package_names
from fedunseen.experiment.parsing import SECTIONS, parse_override
from fedunseen.methods import METHODS
from known_names import known, refuses
from published_layouts import write_mnist

ENGINES = package_names("engine")
WHOLE = "input should be a valid integer"
FLOAT = "input should be a number that float32 holds, at most 3.4e38, not"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("strategy.round=3", "strategy: unknown key 'round': did you mean 'rounds'? (the "
         "nearest: rounds, fraction, shared)"),
        ("strtegy.rounds=3", "strtegy.rounds: unknown section 'strtegy': did you mean 'strategy'? "
         f"{known(SECTIONS, 'strtegy')}"),
        (".x=3", f".x: unknown section '' {known(SECTIONS, '')}"),
        ("strategy.=3", "strategy.: name a setting as section.key, for example strategy.rounds"),
        ("rounds=3", "--set rounds=3: write it as section.key=value, for example --set "
                     "strategy.rounds=10"),
        ("strategy.rounds", "--set strategy.rounds: write it as section.key=value, "
         "for example --set strategy.rounds=10"),
        ("method.name=vgg", f"method.name: unknown method 'vgg' {known(METHODS, 'vgg')}"),
        ("data.name=digitpairs", "data.name: unknown benchmark 'digitpairs': did you mean "
         f"'digit-pairs'? {known(names('data'), 'digitpairs')}"),
        ("engine.name=flowr", "engine.name: unknown engine 'flowr': did you mean 'flower'? "
                              f"{known(ENGINES, 'flowr')}"),
        ("run.device=gpu", "run.device: unknown value 'gpu': did you mean 'cpu'? (known: auto, "
                           "cpu, cuda)"),
        ('data.features=["l3"]', "data.features.0: unknown value 'l3' (known: centre, kernel, l2, min-max, "
                                 "standard, x10)"),
        ("data.features=l2", "data.features: input should be a list in square brackets, not 'l2'"),
        ("method.hidden=[256", "method.hidden: input should be a list in square brackets, not "
                               "'[256'"),
        ("method.hidden=[0]", "method.hidden.0: input should be greater than 0, not 0"),
        ("strategy.rounds=many", f"strategy.rounds: {WHOLE}, unable to parse string as an integer, "
                                 "not 'many'"),
        ("strategy.rounds=2.5", f"strategy.rounds: {WHOLE}, got a number with a fractional part, "
                                "not 2.5"),
        ("strategy.rounds=true", "strategy.rounds: input should be a number, not true"),
        ("evaluation.prior=true", "evaluation.prior: input should be a number, not true"),
        ("strategy.rounds.x=3", f"strategy.rounds: {WHOLE}, not {{'x': 3}}"),
        ("partition.join=3", "partition.join: input should be a table, not 3"),
        ("method.lr=nan", "method.lr: input should be a finite number, not nan"),
        ("method.weight_decay=1e39", f"method.weight_decay: {FLOAT} 1e+39"),
        ('evaluation.choose={"method.lr" = [0.1, 1e39]}', f"evaluation.choose: {FLOAT} 1e+39"),
        (f"strategy.local_epochs={10**20 - 1}", "strategy.local_epochs: input should be a whole "
         "number of 64 bits, below 2^63"),
        ("run.seed=-1", "run.seed: input should be greater than or equal to 0, not -1"),
        ("data.name=xlsa17", "data.root is missing: add it to the experiment or give --set "
                             "data.root=..."),
        ("evaluation.choose.method.lr=[0.1,-1]", "evaluation.choose: method.lr: input should be "
         "greater than 0, not -1"),
    ],
)  # fmt: skip
def test_a_bad_override_is_one_sentence(text, message):
    with refuses(message):
        Experiment.load("digit-pairs", dict([parse_override(text)]))


def test_sections_that_are_none_or_lack_a_name_are_refused():
    whole = {
        "data": {"name": "digit-pairs"},
        "method": {"name": "fedzsl"},
        "strategy": {"name": "fedavg"},
    }
    Experiment.from_dict(whole)
    for tree, message in (
        (
            {"data": "digit-pairs"},
            "data: this is a section; write its settings as data.key = value",
        ),
        (
            {"strategy": [1]},
            "strategy: this is a section; write its settings as strategy.key = value",
        ),
        (
            {"method": {}},
            "method.name is missing: say which one, for example --set method.name=...",
        ),
        ({"seed": 1}, f"unknown section 'seed' {known(SECTIONS, 'seed')}"),
        ({"name": 3}, "name: input should be a text, not 3"),
    ):
        with refuses(message):
            Experiment.from_dict(whole | tree, {"data.features": ["l2"]})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[data\nname = 3", "{}: this is not a TOML file: Expected ']'"),
        ("# é".encode("latin-1"), "{} is not a text file in UTF-8: save it as UTF-8"),
        (b"", "data.name is missing: say which one, for example --set data.name=..."),
        (
            None,
            "{} cannot be read (Is a directory): name an experiment file that is there; fedunseen "
            "init FOLDER writes one",
        ),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path, content, message):
    path = tmp_path / "bad.toml"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(ExperimentError, match=f"^{re.escape(message.format(path))}[^\n]*$"):
        Experiment.load(path)


@pytest.mark.parametrize("name", ["digit-pair", "nothing", "", "x" * 300])
def test_an_unknown_preset_is_refused(name):
    hint = ": did you mean 'digit-pairs'?" if name == "digit-pair" else ""
    shown = name if len(name) <= 200 else "x" * 200 + "..."
    with refuses(
        f"unknown preset {shown!r}{hint} {known(preset_names(), shown)}; an experiment file ends "
        "in .toml"
    ):
        Experiment.load(name)


def test_a_folder_with_a_preset_s_name_hides_no_preset_and_a_byte_order_mark_is_skipped(
    tmp_path, monkeypatch
):
    (tmp_path / "digit-pairs").mkdir()
    monkeypatch.chdir(tmp_path)
    assert Experiment.load("digit-pairs").method.name == "fedzsl"
    (tmp_path / "mine.toml").write_text(preset_text("digit-pairs"), "utf-8-sig")
    assert Experiment.load(tmp_path / "mine.toml").name == "mine"


def test_a_preset_finds_its_data_where_they_are_listed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDUNSEEN_DATA", str(tmp_path / "all"))
    assert Experiment.load("mnist-maml-mi-adv").data.root == Path("mnist")
    with refuses("data.root is missing: add it to the experiment or give --set data.root=..."):
        Experiment.load("awa1-gaussian")
    write_mnist(tmp_path / "all" / "digits")
    for file in ("APY/res101.mat", "APY/att_splits.mat", "AWA1/res101.mat", "AWA1/att_splits.mat"):
        (tmp_path / "all" / "features" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "all" / "features" / file).touch()
    assert Experiment.load("mnist-maml-mi-adv").data.root == tmp_path / "all" / "digits"
    awa1 = Experiment.load("awa1-gaussian").data
    assert (awa1.root, awa1.dataset) == (tmp_path / "all" / "features", "AWA1")
    (tmp_path / "mnist").mkdir()
    assert Experiment.load("mnist-maml-mi-adv").data.root == Path(
        "mnist"
    )  # what is here comes first
    assert Experiment.load("mnist-maml-mi-adv", {"data.root": "other"}).data.root == Path("other")


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_survives_the_way_to_a_dictionary_and_back(name):
    root = find("data", tomllib.loads(preset_text(name))["data"]["name"]).Settings.model_fields.get(
        "root"
    )
    needed = {"data.root": "somewhere"} if root is not None and root.is_required() else {}
    experiment = Experiment.load(name, needed)
    again = Experiment.from_dict(experiment.to_dict())
    assert again.to_dict() == experiment.to_dict()
    assert again == experiment
    assert (again.name, again.run.seed) == (name, 0)
    assert preset_text(name).startswith("# ")  # `fedunseen presets` shows this line


def test_paths_in_a_file_are_relative_to_it_and_those_of_set_to_the_working_folder(
    tmp_path, monkeypatch
):
    file = tmp_path / "mine.toml"
    file.write_text(
        '[data]\nname = "folder"\nroot = "../data"\n[method]\nname = "fedzsl"\n[strategy]\nname = '
        '"fedavg"\n[partition]\nkind = "file"\nfile = "who.csv"\n[encoder]\nname = '
        '"efficientnet-lite"\nweights = "net.pt"\n[evaluation]\nselection = "last"\n[growth]\nname '
        '= "unknown"\ncorrected = { 1 = "new.csv" }\n'
    )
    experiment = Experiment.load(file)
    found = (
        experiment.encoder.weights,
        experiment.partition.file,
        *experiment.growth.corrected.items(),
    )
    assert found == (tmp_path / "net.pt", tmp_path / "who.csv", ("1", tmp_path / "new.csv"))
    assert os.path.normpath(experiment.data.root) == str(tmp_path.parent / "data")
    assert str(Experiment.load(file, {"data.root": "here"}).data.root) == "here"
    file.write_text(file.read_text().replace("../data", "~/data"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert Experiment.load(file).data.root == tmp_path / "home" / "data"


def test_another_name_leaves_behind_what_the_new_choice_does_not_know():
    base = Experiment.load(
        "digit-pairs", {"strategy.name": "fedprox", "strategy.mu": 0.5, "strategy.rounds": 7}
    )
    assert (base.strategy.mu, base.strategy.rounds) == (0.5, 7)
    other = base.with_overrides({"strategy.name": "fedavg"})
    assert (other.strategy.name, other.strategy.rounds) == ("fedavg", 7)
    assert base.with_overrides({"method.name": "classifier"}).method.hidden == (256,)
    assert base.with_overrides({"strategy.name": "fedprox"}) == base


def test_another_strategy_takes_no_rate_that_means_something_else_there():
    adam = Experiment.load("digit-pairs").strategy
    assert (adam.name, adam.server_lr) == ("fedadam", 0.03)  # of a step of the server
    for name, rate in {"fedprox": 1.0, "fedavgm": 1.0, "fedyogi": 0.03}.items():
        other = Experiment.load("digit-pairs", {"strategy.name": name}).strategy
        assert (other.server_lr, other.rounds) == (rate, adam.rounds), name
    chosen = {"strategy.name": "fedprox", "strategy.mu": 0.5}
    moon = Experiment.load("digit-pairs", chosen).with_overrides({"strategy.name": "moon"})
    assert moon.strategy.mu == 1.0  # FedProx's weighs another loss
    given = {"strategy.server_lr": 0.5, "strategy.name": "fedavg"}
    assert Experiment.load("digit-pairs", given).strategy.server_lr == 0.5


def test_overrides_of_tables_add_to_them():
    changes = [
        parse_override(t)
        for t in ("partition.join.5-9=3", 'evaluation.choose."method.lr"=[0.1, 0.2]')
    ]
    experiment = Experiment.load("digit-pairs", dict(changes))
    assert experiment.evaluation.choose == {"method.lr": [0.1, 0.2]}
    more = experiment.with_overrides({"partition.join.2": 1})
    assert more.partition.join == {"5-9": 3, "2": 1}
    assert Experiment.from_dict(more.to_dict()) == more


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("strategy.name=fedprox", ("strategy.name", "fedprox")),
        ("strategy.name='fedprox'", ("strategy.name", "fedprox")),
        ("method.hidden=[1, 2]", ("method.hidden", [1, 2])),
        (" method.lr = 1e-2 ", ("method.lr", 0.01)),
        ("data.root=C:\\data", ("data.root", "C:\\data")),
        ("data.root=a=b", ("data.root", "a=b")),
        ("evaluation.clients=false", ("evaluation.clients", False)),
        ("encoder.outputs=null", ("encoder.outputs", None)),
        ("encoder.name=null", ("encoder.name", "null")),
    ],
)
def test_a_value_of_set_is_toml_or_else_a_text(text, expected):
    assert parse_override(text) == expected


def test_null_unsets_what_a_preset_has_set():
    assert Experiment.load("mnist-maml-mi-adv").encoder.outputs == 2
    made = Experiment.load("mnist-maml-mi-adv", dict([parse_override("encoder.outputs=null")]))
    assert made.encoder.outputs is None
    assert Experiment.from_dict(made.to_dict()).encoder.outputs is None


def test_an_experiment_cannot_be_changed():
    experiment = Experiment.load("digit-pairs")
    with pytest.raises(ValueError, match="frozen"):
        experiment.strategy.rounds = 3
    changed = experiment.with_overrides({"strategy.rounds": 3})
    assert (changed.strategy.rounds, experiment.strategy.rounds) == (3, 100)


def test_a_missing_file_names_the_nearest_three_presets(tmp_path):
    file = tmp_path / "sun-fedzls.toml"
    nearest = known(preset_names(), "sun-fedzls")
    assert nearest.startswith("(the nearest: sun-fedzsl, ")
    with refuses(
        f"{file} is missing: name an experiment file that is there, or a preset {nearest}; "
        "fedunseen init FOLDER writes one"
    ):
        Experiment.load(file)
    file = tmp_path / "nosuch.toml"
    with refuses(
        f"{file} is missing: name an experiment file that is there; fedunseen init FOLDER writes one"
    ):
        Experiment.load(file)


def test_a_setting_of_several_kinds_is_named_as_in_the_file():
    tree = {"data": {"name": "digit-pairs"}, "evaluation": {"prior": "balance"}}
    with pytest.raises(ExperimentError, match=r"^evaluation\.prior: unknown value 'balance': did"):
        Experiment.from_dict({**tree, "method": {"name": "gaussian"}})
