"""The sweep file: how it is read, what is refused, what the cells are, and what becomes a row of
results.
"""

import csv
import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from fedunseen import run
from fedunseen.core.errors import ExperimentError
from fedunseen.core.toml import toml_text
from fedunseen.experiment.assemble import check, load_data
from fedunseen.research.sweep import read_sweep, rows, write_csv
from fedunseen.research.sweep.schema import read_file, select
from fedunseen.research.sweeps import sweep_names
from known_names import refuses
from published_layouts import THINGS, write_apy, write_deepfashion, write_splits
from refusals import message_of

SMALL = """
title = "A small one"
base = "base.toml"
seeds = 2
experiment.strategy.rounds = 3
experiment.evaluation.selection = "last"
[axes]
lr = { key = "method.lr", values = [0.05, 0.5] }
[axes.losses]
"sce alone" = {}
"+ con" = { method = { consistency = 0.1 } }
"""

PAPER = """
[paper]
source = "No one (1900), Table 0"
axes = ["losses", "lr"]
metrics = ["zsl", "gzsl_seen"]
[paper.figures]
"+ con" = { "0.05" = [12.5, nan], "0.5" = [1, 2.25] }
"""


@pytest.fixture
def write(tree, tmp_path):
    """Write a sweep file, and the base experiment beside it."""

    def make(text=SMALL, name="small.toml"):
        (tmp_path / "base.toml").write_text(toml_text(tree), "utf-8")
        (tmp_path / name).write_text(text, "utf-8")
        return tmp_path / name

    return make


@pytest.fixture
def refused(write):
    """Read a sweep file that must be refused; return the sentence without the file's name in
    front.
    """

    def call(text, **more):
        path = write(text)
        return message_of(read_sweep, path, error=ExperimentError, **more).removeprefix(f"{path}: ")

    return call


def test_cells_are_the_product_of_the_axes_in_the_file_s_order_and_overrides_reach_them_all(write):
    sweep = read_sweep(write())
    assert (sweep.name, sweep.axes) == (
        "small",
        {"lr": ("0.05", "0.5"), "losses": ("sce alone", "+ con")},
    )
    keys, folders = zip(*((cell.key, cell.folder) for cell in sweep.cells), strict=True)
    assert keys == ("0.05 / sce alone", "0.05 / + con", "0.5 / sce alone", "0.5 / + con")
    assert folders == ("0.05--sce-alone", "0.05--+-con", "0.5--sce-alone", "0.5--+-con")
    for cell in sweep.cells:
        made, method = cell.experiment, cell.experiment.method
        assert (made.name, made.strategy.rounds, made.run.seeds, made.evaluation.selection) == (
            "small",
            3,
            2,
            "last",
        )
        expected = float(cell.values["lr"]), 0.1 if cell.values["losses"] == "+ con" else 0.0
        assert (method.lr, method.consistency) == expected
    sweep = read_sweep(write(), overrides={"strategy.rounds": 7, "partition.join": {"1": 2}})
    assert {cell.experiment.strategy.rounds for cell in sweep.cells} == {7}
    assert (
        sweep.command
        == f"fedunseen sweep {write()} --set strategy.rounds=7 --set 'partition.join={{ 1 = 2 }}'"
    )


def test_a_value_of_an_axis_may_change_method_and_strategy(write):
    plain = 'plain.method = { name = "classifier", hidden = [4] }\nplain.strategy = { name = "fedprox", mu = 1 }'
    cell = read_sweep(write(SMALL + plain)).cells[-1]
    method, strategy = cell.experiment.method, cell.experiment.strategy
    assert (cell.values["losses"], method.name, method.hidden) == ("plain", "classifier", (4,))
    assert (method.lr, method.batch_size) == (0.5, 8)  # what both methods know is kept
    assert (strategy.mu, strategy.rounds) == (1.0, 3)


def test_an_axis_may_be_named_by_its_setting_and_base_may_be_left_out(write, tree):
    text = f"""
title = "inline"
[experiment]
data = {{ name = "folder", root = "{tree["data"]["root"]}" }}
method.name = "fedzsl"
"strategy.name" = "fedavg"
[axes]
"partition.clients" = [2, 4]
"partition.join" = [{{ 1 = 2 }}]
"""
    sweep = read_sweep(write(text))
    partitions = [cell.experiment.partition for cell in sweep.cells]
    assert [(one.clients, one.join) for one in partitions] == [(2, {"1": 2}), (4, {"1": 2})]
    assert sweep.cells[0].values == {"partition.clients": "2", "partition.join": '{"1": 2}'}


def test_only_takes_parts_of_the_grid(write):
    sweep = read_sweep(
        write('only = [{ lr = "0.05" }, { lr = ["0.5"], losses = "+ con" }]\n' + SMALL)
    )
    assert [cell.key for cell in sweep.cells] == ["0.05 / sce alone", "0.05 / + con", "0.5 / + con"]
    assert [cell.key for cell in select(sweep, {"losses": ["+ con"]})] == [
        "0.05 / + con",
        "0.5 / + con",
    ]
    with refuses("--only: the sweep leaves out every cell of this part: take another"):
        select(sweep, {"losses": ["sce alone"], "lr": ["0.5"]})
    with refuses("--only: unknown axis 'loses': did you mean 'losses'? (known: losses, lr)"):
        select(sweep, {"loses": ["+ con"]})
    with refuses(
        "--only: losses: unknown value 'con': did you mean '+ con'? (known: + con, sce alone)"
    ):
        select(sweep, {"losses": ["con"]})


SETS = """
[data_sets.birds]
note = "twelve birds"
method = { hidden = [8] }
[data_sets.fish]
beside = ["eels", "birds"]
methods = { fedzsl = { temperature = 2.0, consistency = 3.0 }, classifier = { hidden = [1] } }
fixed = { method = { lr = 1.5 } }
[data_sets.eels]
data.root = "elsewhere"
"""


def test_data_sets_are_an_axis_of_their_own_whose_paths_are_relative_to_the_sweep_file(
    write, tmp_path
):
    paper = PAPER.replace('"losses", "lr"', '"losses", "lr", "data"')
    for numbers in ("[12.5, nan]", "[1, 2.25]"):
        paper = paper.replace(numbers, f"{{ birds = {numbers} }}")
    path = write('data = ["birds"]\n' + SMALL + SETS + paper)
    sweep = read_sweep(path)
    assert [*sweep.axes.items()] == [
        ("data", ("birds",)),
        ("lr", ("0.05", "0.5")),
        ("losses", ("sce alone", "+ con")),
    ]
    assert (sweep.cells[1].paper, sweep.notes) == ({"zsl": 12.5}, {"birds": "twelve birds"})
    sweep = read_sweep(path, data=["fish", "eels"])
    assert sweep.axes["data"] == ("fish", "eels")
    assert sweep.beside == {"fish": "birds", "eels": "eels"}  # the paper has no eels
    by_key = {cell.key: cell for cell in sweep.cells}
    fish, eels = by_key["fish / 0.5 / + con"], by_key["eels / 0.5 / + con"]
    assert (fish.paper, eels.paper) == ({"zsl": 1.0, "gzsl_seen": 2.25}, {})
    method = fish.experiment.method
    assert method.lr == 1.5  # no axis changes what is fixed
    assert (method.temperature, method.hidden) == (
        2.0,
        (16,),
    )  # what the data set says of this method
    assert by_key["fish / 0.5 / sce alone"].experiment.method.consistency == 3.0
    assert method.consistency == 0.1  # the axis says so
    assert (eels.experiment.method.lr, eels.experiment.data.root) == (0.5, tmp_path / "elsewhere")
    assert sweep.command.endswith("--data fish --data eels")
    bundle = '{ name = "images", root = "here/x", classes = "../y.csv" }'
    data = read_sweep(write(f"{SMALL}[data_sets.eels]\ndata = {bundle}\n")).cells[0].experiment.data
    assert (Path(data.root), Path(data.classes)) == (
        tmp_path / "here" / "x",
        tmp_path / ".." / "y.csv",
    )


def test_cells_that_make_no_sense_refuse_the_sweep_or_are_listed(write, refused):
    text = SMALL + '"closed" = { method = { name = "eszsl" }, strategy = { rounds = 3 } }\n'
    sentence = (
        "method.name = 'eszsl' is solved from sums, which clients send once: leave strategy.rounds "
        "out, or set it to 1 (more rounds are for partitions with clients that come late, "
        "partition.join)"
    )
    assert refused(text) == f"0.05 / closed: {sentence}"
    cells = read_sweep(write("skip_refused = true\n" + text)).cells
    assert [(c.refused, c.experiment is None) for c in cells] == [
        (None, False),
        (None, False),
        (sentence, True),
    ] * 2


@pytest.mark.parametrize(
    ("text", "start"),
    [
        (SMALL.replace("seeds", "seads"), "unknown key 'seads': did you mean 'seeds'? (the "
                                          "nearest: seeds, "),
        (SMALL + "[table]\nrow = []", "table: unknown key 'row' (known: columns, metrics, tables)"),
        (SMALL + "[[figures]]\nline = []", "figures: unknown key 'line': did you mean 'lines'?"),
        (SMALL.replace("title =", "base = "), "this is not a TOML file: Cannot overwrite a value "
                                              "(at line 3"),
        (SMALL.replace('title = "A small one"', ""), "title is missing: add it"),
        (SMALL.replace("seeds = 2", "seeds = 0"), "seeds: input should be greater than or equal to "
                                                  "1, not 0"),
        (SMALL.replace("method.lr", "method.ler"), "0.05 / sce alone: method: unknown key 'ler'"),
        (SMALL.replace("[0.05, 0.5]", "[0.05, -1]"), "-1 / sce alone: method.lr: input should be "
                                                     "greater than 0"),
        (SMALL.replace("[0.05, 0.5]", "[]"), "axes: lr: there is no value: give it a few"),
        (SMALL.replace("[0.05, 0.5]", "[1, 1]"), "axes: lr: a value stands there twice: leave one "
                                                 "out"),
        (SMALL.replace("[0.05, 0.5]", "0.05"), "axes: lr: values: input should be a list, not "
                                               "0.05"),
        (SMALL.replace('"method.lr"', '"lr"'), "axes: lr: values belong to a setting: name it as "
                                               "section.key"),
        (SMALL.replace("lr = {", "round = {"), "axes: round: this name has another meaning in a "
                                               "sweep"),
        (SMALL.replace('"sce alone" = {}', '"sce alone" = 1'), "axes: losses: sce alone: write a "
                                                               "bundle of settings"),
        (SMALL + "[data_sets]\nbirds = 1", "data_sets.birds: input should be a table, not 1"),
        (SMALL + "[data_sets.birds.methods.fedzls]\nlr = 1", "birds: methods: unknown method "
                                                             "'fedzls'"),
        (SMALL + "[data_sets.birds]\nfixed = 1", "data_sets: birds: write a table of settings"),
        (SMALL + '"more" = { lr = 1 }', "axes: losses: more: lr: write settings as section.key = "
                                        "value"),
        ('only = [{ lr = "0.1" }]\n' + SMALL, "only[0]: lr: unknown value '0.1': did you mean "
                                              "'0.5'?"),
        ('only = [{ lr = [] }]\n' + SMALL, "only: no cell of the grid is in one of these parts: "
                                           "leave one out"),
        (SMALL + '[table]\ncolumns = ["los"]', "table: columns: unknown axis 'los': did you mean "
                                               "'losses'?"),
        (SMALL + '[table]\ncolumns = ["lr"]\ntables = ["lr"]', "table: the axis 'lr' is in tables "
                                                               "and in columns"),
        (SMALL + '[[figures]]\nmetrics = ["bytes_up"]', "figures: metrics: bytes_up has no curve "
                                                        "by round"),
        (SMALL + '[[figures]]\nx = "lrs"', "figures: x: unknown axis 'lrs': did you mean 'lr'?"),
        (SMALL + PAPER.replace('"losses", "lr"', '"lr"'), "paper.axes: name each of the axes once: "
                                                          "lr, losses"),
        (SMALL + PAPER.replace('"0.5" =', '"0.4" ='), "paper.figures: + con: lr: unknown value "
                                                      "'0.4'"),
        (SMALL + PAPER.replace("[1, 2.25]", "[1]"), "paper.figures: + con / 0.5: write 2 numbers "
                                                    "(zsl, gzsl_seen)"),
        (SMALL + PAPER.replace("[1, 2.25]", '["1", 2]'), "paper.figures: + con / 0.5: write 2 "
                                                         "numbers"),
        ('data = ["fsh"]\n' + SMALL + SETS, "data: unknown data set 'fsh': did you mean 'fish'?"),
        (SMALL + SETS.replace('["eels", "birds"]', '"bird"'), "fish: beside: unknown data set "
                                                              "'bird'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence(refused, text, start):
    sentence = refused(text, **({"data": ["fish"]} if "beside: unknown" in start else {}))
    assert sentence.startswith(start)
    assert "\n" not in sentence


def test_wrong_arguments_are_one_sentence(refused, tmp_path):
    small, missing = tmp_path / "small.toml", tmp_path / "none.toml"
    set_twice = "--set method.lr: the axis 'lr' sets it, so all its values would be "
    for text, more, start in (
        (SMALL, {"overrides": {"method.lr": 1.0}}, set_twice),
        (SMALL, {"data": ["birds"]}, f"--data birds: {small} names no data sets: leave it out"),
        (
            'data_sets = "none.toml"\n' + SMALL,
            {},
            f"{missing} is missing: fix data_sets in {small}",
        ),
        (
            SMALL + SETS,
            {"data": ["bird"]},
            "--data: unknown data set 'bird': did you mean 'birds'?",
        ),
    ):
        assert refused(text, **more).startswith(start)
    with refuses(
        f"{missing} is missing: name a sweep file or a shipped sweep ({', '.join(sweep_names())})"
    ):
        read_sweep(missing)


@pytest.mark.slow
@pytest.mark.parametrize("name", sweep_names())
def test_every_cell_of_every_shipped_sweep_is_read(name):
    seeds = {"digit-pairs-grid": 1, "fzsl-fig7": 1, "fedfsl-fig6": 5}.get(name, 3)
    for data in [(), *((one,) for one in read_file(name)[1])]:
        cells = read_sweep(name, data).cells
        assert [cell.refused for cell in cells if cell.refused] == []
        assert {cell.experiment.run.seeds for cell in cells} == {seeds}
        folders, experiments = zip(
            *((c.folder, json.dumps(c.experiment.to_dict())) for c in cells), strict=True
        )
        assert len(set(folders)) == len(set(experiments)) == len(cells)


def printed(name, columns=("AWA2", "AWA1", "APY", "CUB", "SUN")):
    """Return the paper's ZSL accuracies: row -> a number for each data set."""
    found = {}
    for cell in read_sweep(name).cells:
        row = " / ".join(value for axis, value in cell.values.items() if axis != "data")
        found.setdefault(row, {})[cell.values["data"]] = cell.paper.get("zsl")
    return {row: [line.get(one) for one in columns] for row, line in found.items()}


@pytest.mark.slow
def test_what_fzsl_prints_in_several_tables_is_the_same_everywhere():
    """A wrong digit would show: the baseline, SMA and both kinds of text stand in up to five of its
    tables.
    """
    one, two, three, four, six = (printed(f"fzsl-table{n}") for n in (1, 2, 3, 4, 6))
    assert one["CLSWGAN + FedAvg"] == two["FedAvg"] == four["FedAvg"] == six["even / FedAvg"]
    assert two["+ SMA"] == three["none"] == four["+ SMA"]
    assert one["ours (LM)"] == two["+ SMA + SKA (LM)"] == three["RoBERTa"]
    assert one["ours (VLM)"] == two["+ SMA + SKA (VLM)"] == three["CLIP"] == four["ours (VLM)"]
    assert six["even / ours (VLM)"] == one["ours (VLM)"]
    assert one["centralised CLSWGAN"] == four["centralised"]
    some = ("AWA2", "CUB", "SUN")
    five, shorter = printed("fzsl-table5", some), printed("fzsl-table1", some)
    for theirs, ours in (
        ("FedAvg", "CLSWGAN + FedAvg"),
        ("ours (LM)", "ours (LM)"),
        ("ours (VLM)", "ours (VLM)"),
    ):
        assert five[f"ResNet-101 / {theirs}"] == shorter[ours]
    # section 4.1: "improves the baseline by 9% with SKA(VLM) and by 4% with SKA(LM) on average"
    for row, gain in (("ours (VLM)", 9), ("ours (LM)", 4)):
        assert round(np.mean(np.subtract(one[row], one["CLSWGAN + FedAvg"]))) == gain
    assert six["uneven / FedAvg"] == [63.0, 58.7, 35.3, 55.8, 59.7]
    assert three["DeFILIP, by attribute"] == [None, None, None, 59.8, 65.6]


@pytest.mark.slow
def test_fzsl_s_cells_say_what_travels_and_what_the_generator_is_told():
    cells = {cell.key: cell.experiment for cell in read_sweep("fzsl-table1").cells}
    shared = [cells[f"CUB / {row}"].strategy.shared for row in ("CLSWGAN + FedAvg", "ours (VLM)")]
    assert shared == [("*",), ("generator.*",)]
    assert cells["CUB / ours (LM)"].method.text == "roberta-base"
    assert (cells["CUB / FL-FREE"].method.margin, cells["AWA1 / FL-FREE"].method.balance) == (
        200.0,
        0.1,
    )
    assert (cells["SUN / FL-FREE"].method.batch_size, cells["SUN / FL-VAEGAN"].method.lr) == (
        512,
        1e-3,
    )
    assert (cells["SUN / FL-FREE"].method.lr, cells["SUN / ours (VLM)"].method.synthetic) == (
        2e-4,
        400,
    )
    for key, experiment in cells.items():
        strategy, clients = experiment.strategy, experiment.partition.clients
        assert (strategy.rounds, strategy.local_epochs, strategy.weights, clients) == (
            100,
            1,
            "uniform",
            4,
        )
        one_to_one = ("min-max",) if experiment.method.name in ("vaegan", "free") else ("l2",)
        assert experiment.data.features == one_to_one, key
    # what is at hand runs without any download
    for name in ("table1", "table2", "table3", "table4", "table6", "fig6a", "fig7", "noise"):
        for cell in read_sweep(
            f"fzsl-{name}", ["AWA1_LAMPERT", "CIFAR100_MBV2", "digit-pairs"]
        ).cells:
            assert cell.experiment.method.text in ("", "minilm")
            assert cell.experiment.encoder.name == "none"


@pytest.mark.slow
def test_printed_harmonic_means_follow_from_the_accuracies_beside_them():
    """A wrong digit would show: H is 2US / (U + S) of rounded U and S, but for what the papers
    themselves misprint.
    """
    wrong = set()
    for name in sweep_names():
        for cell in read_sweep(name).cells:
            u, s, h = (
                cell.paper.get(f"gzsl_{part}", np.nan) for part in ("unseen", "seen", "harmonic")
            )
            if abs(2 * u * s / (u + s) - h) > 0.16:  # never for one that is not printed
                wrong.add(cell.key)
    assert wrong == {
        "AWA2 / centralised / centralised / svip*", "CUB / dirichlet / fednova / msdn", "SUN / "
                                                                                        "pccd / "
                                                                                        "fedprox / "
                                                                                        "gem",
        "AWA2 / pccd / moon / msdn", "AWA2 / FedAvg", "AWA2 / FedAvg, as printed",
    }  # fmt: skip


@pytest.mark.slow
def test_results_are_mean_and_deviation_of_the_seeds(write, tmp_path):
    sweep, out = read_sweep(write(SMALL + PAPER)), tmp_path / "out"
    done = sweep.cells[1]
    run(done.experiment, out / "cells" / done.folder)
    (out / "failed").mkdir()
    (out / "failed" / f"{sweep.cells[2].folder}.json").write_text(
        r'{"problem": "it, \"broke\"", "refused": false}'
    )
    found = rows(sweep, out)
    statuses, row = ["not run", "done", "failed", "not run"], found[1]
    assert [one.status for one in found] == statuses
    seeds = [
        json.loads((out / "cells" / done.folder / f"seed-{s}" / "result.json").read_text())
        for s in (0, 1)
    ]
    for name in ("zsl", "gzsl_unseen", "gzsl_seen", "gzsl_harmonic"):
        values = [seed[name] for seed in seeds]
        assert (row.mean[name], row.sd[name]) == pytest.approx(
            (np.mean(values), np.std(values, ddof=1))
        )
    assert row.mean["bytes_up"] == np.mean([seed["bytes_up"] for seed in seeds])
    write_csv(sweep, found, out / "results.csv")
    lines = list(csv.DictReader((out / "results.csv").read_text("utf-8").splitlines()))
    assert [line["status"] for line in lines] == statuses
    # A spreadsheet would take "+ con" for a formula.
    assert [(line["lr"], line["losses"].removeprefix("'")) for line in lines] == [
        tuple(cell.values.values()) for cell in sweep.cells
    ]
    line = lines[1]
    assert (float(line["zsl"]), float(line["zsl_sd"])) == (row.mean["zsl"], row.sd["zsl"])
    assert (line["zsl_paper"], line["gzsl_seen_paper"], lines[0]["zsl_paper"]) == ("12.5", "", "")
    assert (line["seeds"], line["selection"], line["run"]) == ("2", "last", "cells/0.05--+-con")
    assert lines[2]["problem"] == 'it, "broke"'
    assert (
        line["command"]
        == f"fedunseen sweep {tmp_path / 'small.toml'} --only lr=0.05 --only 'losses=+ con'"
    )


def test_shipped_files_are_in_the_package():
    tool = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["tool"]
    files = {"research/sweeps/*.toml", "research/sweeps/data/*.toml"}
    assert files <= set(tool["setuptools"]["package-data"]["fedunseen"])


@pytest.mark.slow
@pytest.mark.parametrize("data", ["APY", "DeepFashion"])
def test_every_network_of_table_1_fits_attributes_without_published_groups(
    tmp_path, monkeypatch, data
):
    """The class space is that of the published layout; a small network stands for ResNet-101."""
    own = {"encoder.name": "conv", "data.size": 8}
    if data == "APY":
        _, pictures, labels, *_ = zip(*write_apy(tmp_path), strict=True)
        write_splits(tmp_path, THINGS, list(pictures), np.array(labels), [1, 4])
    else:
        write_deepfashion(tmp_path)
        monkeypatch.setattr("fedunseen.research.papers.distzsl.deepfashion.UNSEEN_CLASSES", 2)
    monkeypatch.setenv("FEDUNSEEN_DATA", str(tmp_path))
    sweep = read_sweep("distzsl-table1", [data])
    networks = [name for name in sweep.axes["method"] if not name.endswith("*")]
    for cell in select(sweep, {"partition": "iid", "strategy": "fedavg", "method": networks}):
        experiment = cell.experiment.with_overrides(own)
        check(experiment, load_data(experiment, 0))
