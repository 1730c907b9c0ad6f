"""The page and the Markdown of a sweep say what its runs say."""

import re

import numpy as np
import pytest

from fedunseen.federation.run_directory import RunDirectory
from fedunseen.pages.report.sweep_page import write_sweep_report
from fedunseen.pages.report.sweep_tables import sweep_tables
from fedunseen.research.sweep import Row, read_sweep
from known_names import DIGITS_MAML
from pages import Page

METRICS = ("zsl", "gzsl_unseen", "gzsl_seen", "gzsl_harmonic")
PAPER = {("0.0", "fedavg"): [[11.5], [12.5]], ("0.0", "local"): [[], [13.25]]}
SWEEP = """
title = "Digits & <others>"
base = "digit-pairs"
seeds = 3
data = ["digits", "birds"]
axes.kl = { key = "method.kl", values = [0.0, 1.0, 3.0] }
axes.strategy = { key = "strategy.name", values = ["fedavg", "local"] }
data_sets.digits = { beside = "birds", note = "pairs of digits" }
data_sets.birds.evaluation = { selection = "last" }
paper.source = "No one (1900), Table 0"
paper.metrics = ["zsl", "gzsl_harmonic"]
paper.figures.birds."0.0" = { fedavg = [11.5, 12.5], local = [nan, 13.25] }
[table]
%s
[[figures]]
title = "Weight"
x = "kl"
lines = ["strategy"]
only = { data = "digits" }
[[figures]]
lines = ["strategy"]
band = "clients"
only = { kl = "1.0" }
"""
FEW_SHOT = f"""
title = "Examples"
base = "{DIGITS_MAML}"
axes.clients = {{ key = "partition.clients", values = [1, 2, 5] }}
axes.row = {{ MAML = {{}}, ProtoNet = {{ method = {{ name = "protonet" }} }} }}
paper.source = "No one (1900), Fig. 0"
paper.metrics = ["few_shot"]
paper.figures."2" = {{ MAML = [54.25] }}
[[figures]]
x = "clients"
lines = ["row"]
"""


@pytest.fixture
def read(tmp_path):
    """Read the file of a sweep; return it, rows with made-up numbers, all different, and the
    folder.
    """

    def make(text, names, seeds=3, drop=()):
        (tmp_path / "sweep.toml").write_text(text, "utf-8")
        sweep, random, rows = read_sweep(tmp_path / "sweep.toml"), np.random.default_rng(0), []
        for i, cell in enumerate(sweep.cells):
            mean, deviation = (
                {name: float(random.uniform(1, most)) for name in names} for most in (90, 5)
            )
            usual = seeds, cell.experiment.evaluation.selection, f"cells/{cell.folder}"
            if i in drop:
                rows.append(Row(cell, "failed", "it <broke>", {}, {}, *usual, None))
            else:
                rows.append(
                    Row(cell, "done", None, mean, deviation if seeds > 1 else {}, *usual, 1.5)
                )
        return sweep, rows, tmp_path

    return make


@pytest.fixture
def made(read):
    """A sweep of zero-shot runs, and the curves of those that are done."""

    def make(table="", drop=()):
        sweep, found, out = read(SWEEP % table, METRICS, drop=drop)
        for i, row in enumerate(found):
            for seed in range(3) if row.status == "done" else ():
                directory = RunDirectory(out / row.run / f"seed-{seed}")
                directory.path.mkdir(parents=True)
                for round in range(4):
                    accuracies = dict.fromkeys(METRICS, 10.0 * round + seed + i)
                    both = [10.0 * round, 10.0 * round + 2 * seed]
                    own = {name: both for name in METRICS}  # noqa: C420 - a list, though no one changes it
                    directory.add_metrics({"round": round + 1, **accuracies, "clients": own})
        return sweep, found, out

    return make


def page_of(sweep, found, out):
    return Page(write_sweep_report(sweep, found, out).read_text("utf-8"))


def cell(row, name):
    """Return what a table has of an accuracy: its words and its numbers."""
    if row.status != "done":
        return ["–", []]  # noqa: RUF001
    mean, sd = row.mean[name], row.sd[name]
    return [f"{mean:.1f} ± {sd:.1f}", [mean, sd]]


def interval(row, name):
    """Three seeds: t(0.975; 2) = 4.3027."""
    mean, half = row.mean[name], 4.302653 * row.sd[name] / 3**0.5
    return f"{max(mean - half, 0):.1f} to {min(mean + half, 100):.1f}"


def test_the_page_its_markdown_and_its_latex_say_what_the_rows_say(made):
    sweep, found, out = made(drop=[4])
    page = page_of(sweep, found, out)
    text, latex = ((out / f"results.{kind}").read_text("utf-8") for kind in ("md", "tex"))
    digits, birds, _ = page.tables
    for (head, *body), rows, beside in ((digits, found[:6], ", birds"), (birds, found[6:], "")):
        wanted = ["kl", "strategy", "ZSL", f"paper{beside}", "U", "S", "H", f"paper{beside}"]
        assert [text for text, _ in head] == wanted + ([""] if beside else [])
        for row, line in zip(rows, body, strict=True):
            place = row.cell.values["kl"], row.cell.values["strategy"]
            assert (line[0][0], line[1][0]) == place
            assert [line[2], *line[4:7]] == [cell(row, name) for name in METRICS]
            assert [line[3][1], line[7][1]] == PAPER.get(place, [[], []])
    lines = [
        [part.strip() for part in line.strip("|").split("|")]
        for line in text.splitlines()
        if line[:1] == "|"
    ]
    assert lines[0] == [words for words, _ in digits[0]]
    for row, line in zip(found[:6], lines[2:8], strict=True):
        numbers = [cell(row, name)[0] for name in METRICS]
        assert line[:2] == [row.cell.values["kl"], row.cell.values["strategy"]]
        assert [line[2], *line[4:7]] == numbers
        assert row.status != "done" or all(
            f" & {number} ".replace("±", r"$\pm$") in latex for number in numbers
        )
    assert lines[2][3] == "11.5 (birds)"
    assert "1. it <broke>" in text
    assert sweep.command in text
    assert latex.count(r"\begin{tabular}") == latex.count(r"\bottomrule") == 2
    assert digits[5][-1][0] == "failed [1]"
    for words in (
        "it <broke>", "Digits & <others>", "11 done, 1 failed of 12 cells, 3 seeds each",
        "“paper” is what No one (1900), Table 0 prints. It is about birds, not about digits: read "
        "its figures for ",
        "digits: pairs of digits.", "chosen on validation classes", "The last round; nothing was "
                                                                    "chosen",
    ):  # fmt: skip
        assert words in page.text


def test_the_charts_are_those_that_the_file_asks_for(made):
    sweep, found, out = made(drop=[4])
    page = page_of(sweep, found, out)
    assert [chart["label"].partition(":")[0] for chart in page.charts] == [
        "ZSL accuracy over kl", "H, harmonic mean over kl",
        *["ZSL accuracy by round", "H, harmonic mean by round"] * 2,
    ]  # fmt: skip
    done = [row for row in found[:6] if row.status == "done"]
    assert len(done) == 5
    assert {title for title in page.charts[0]["titles"] if title} == {
        f"{row.cell.values['strategy']} kl {row.cell.values['kl']}: {row.mean['zsl']:.1f}% "
        f"(95 % interval {interval(row, 'zsl')})"
        for row in done
    }
    # by round: a line, the clients' dashed one and their band for each strategy
    assert [(chart["lines"], chart["bands"]) for chart in page.charts[2:]] == [(4, 2)] * 4
    i = next(i for i, row in enumerate(found) if row.cell.key == "digits / 1.0 / fedavg")
    last = page.charts[2]["titles"][-1]
    assert f"fedavg {30 + i + 1:g}%" in last  # the mean of 30 + i + (0, 1, 2)
    assert "(30 to 32)" in last  # clients: means 30, 31, 32 of the seeds, deviations 0, 1, 2


def test_columns_stand_beside_each_other(made):
    sweep, found, _ = made(
        'columns = ["data", "strategy"]\ntables = []\nmetrics = ["zsl"]', drop=[4]
    )
    (table,) = sweep_tables(sweep, found)
    assert (table.axes, table.heads, table.notes) == (("kl",), (("ZSL", True),), ("it <broke>",))
    assert table.groups == ("digits · fedavg", "digits · local", "birds · fedavg", "birds · local")
    assert [labels for labels, _, _ in table.lines] == [("0.0",), ("1.0",), ("3.0",)]
    by_key = {row.cell.key: row for row in found}
    for (kl,), numbers, note in table.lines:
        for group, number in zip(table.groups, numbers, strict=True):
            data, strategy = group.split(" · ")
            assert number.mean == by_key[f"{data} / {kl} / {strategy}"].mean.get("zsl")
        assert note == ("failed [1]" if kl == "3.0" else "")


def test_what_travels_stands_in_tables_and_bars(made):
    table = 'metrics = ["zsl", "parameters_shared", "bytes_up"]\n[[figures]]\nx = "kl"\nlines = ["strategy"]\n'
    table += 'metrics = ["parameters_shared", "bytes_up"]\nonly = { data = "digits" }'
    sweep, found, out = made(table)
    messages = []
    for i, row in enumerate(found):
        measured = (
            {}
            if i == 1
            else {"parameters_shared": 1_000_000.0 * (i + 1), "bytes_up": 4_000_000.0 * (i + 1)}
        )
        messages.append(Row(**{**vars(row), "mean": {**row.mean, **measured}}))
    head, *body = page_of(sweep, messages, out).tables[0]
    assert [text for text, _ in head][2:] == ["ZSL", "paper, birds", "parameters that travel", "up"]
    assert [line[-2][0] for line in body] == [
        "1,000,000",
        "–",  # noqa: RUF001
        *(f"{n},000,000" for n in (3, 4, 5, 6)),
    ]
    assert [line[-1][0] for line in body] == ["4 MB", "–", *(f"{4 * n} MB" for n in (3, 4, 5, 6))]  # noqa: RUF001
    assert [line[-1][1] for line in body if line[-1][1]] == [[4e6 * n] for n in (1, 3, 4, 5, 6)]
    text = (out / "results.html").read_text("utf-8")
    assert "Down: bytes that the server sends to a client in a round" in text
    chart = re.search(
        r'<svg[^>]*aria-label="Parameters that travel over kl".*?</svg>', text, re.DOTALL
    )[0]
    bars = re.findall(r'width="([\d.]+)" height="14"><title>(.*?)</title>', chart)
    assert [said for _, said in bars] == [
        "fedavg 0.0: 1,000,000", "fedavg 1.0: 3,000,000", "local 1.0: 4,000,000", "fedavg 3.0: "
                                                                                  "5,000,000",
        "local 3.0: 6,000,000",
    ]  # fmt: skip
    lengths = np.array([float(width) for width, _ in bars])
    np.testing.assert_allclose(lengths / lengths[0], [1, 3, 4, 5, 6], rtol=2e-3)
    assert re.findall(r'<text class="tick"[^>]*>([\d.]+)</text>', chart) == [
        "1",
        "3",
        "4",
        "5",
        "6",
    ]
    assert "| 4 MB |" in (out / "results.md").read_text("utf-8")


@pytest.mark.parametrize("seeds", [1, 3])
def test_few_shot_cells_have_their_own_columns_and_intervals(read, seeds):
    names = "few_shot", "few_shot_pixels", "few_shot_random", "few_shot_ci95"
    sweep, found, out = read(FEW_SHOT, names, seeds)
    page = page_of(sweep, found, out)
    head, *body = page.tables[0]
    assert [text for text, _ in head] == [
        "clients",
        "row",
        "few-shot",
        "paper",
        "raw samples",
        "untrained",
    ]
    for row, line in zip(found, body, strict=True):
        half = row.sd["few_shot"] if seeds > 1 else row.mean["few_shot_ci95"]
        assert line[2] == [f"{row.mean['few_shot']:.1f} ± {half:.1f}", [row.mean["few_shot"], half]]
        assert line[3][0] == ("54.2" if row.cell.key == "2 / MAML" else "")
        assert [cell[1][0] for cell in line[4:]] == [row.mean[name] for name in names[1:3]]
        assert ("±" in line[4][0]) == (seeds > 1)
    assert ("± half of the 95 % interval over the test episodes of the one run" in page.text) == (
        seeds == 1
    )
    bars = (
        "the 95 % interval over the seeds" if seeds > 1 else "the 95 % interval over the episodes"
    )
    assert f"; bars: {bars}. On test episodes the nearest example" in page.text
    pixels = [row.mean["few_shot_pixels"] for row in found]
    assert f"reaches {min(pixels):.1f} to {max(pixels):.1f} %." in page.text
    assert f"| {found[0].mean['few_shot']:.1f} ± " in (out / "results.md").read_text("utf-8")


def test_a_cell_has_its_interval_its_seeds_and_a_way_to_its_run(made):
    sweep, found, out = made()
    (out / found[0].run / "report.html").write_text("a run's page")
    items = [Row(**{**vars(found[0]), "each": {"zsl": (10.0, 20.0, 30.0)}}), *found[1:]]
    text = write_sweep_report(sweep, items, out).read_text("utf-8")
    assert f'<small class="interval">{interval(found[0], "zsl")}</small>' in text
    assert re.findall(r'<a href="([^"]*report.html)"><data', text) == [
        f"{found[0].run}/report.html"
    ] * len(METRICS)
    assert (
        text.count('r="2"') == 3
    )  # in one chart: the other measures of this cell have no seeds here
    assert "small dots: the single seeds" in text
    # birds' figures stand beside numbers of digits: the cell says whose they are
    assert '<data value="11.5">11.5</data><small class="interval">birds</small>' in text
    assert text.count('<small class="interval">birds</small>') == 3
