"""LaTeX, read back as a LaTeX reader would: rows end in two backslashes, cells are divided by bare
ampersands.
"""

import re

import pytest

from fedunseen.core.latex import escaped, tabular


def read_back(text):
    body = text.split("\\midrule\n")[1].split("\\bottomrule")[0]
    assert not re.search(r"(?<!\\)[%$#_{}]", body)
    rows = [re.split(r"(?<!\\)&", line.removesuffix(r" \\")) for line in body.splitlines()]
    return [[re.sub(r"\\([&%_$#{}])", r"\1", cell.strip()) for cell in row] for row in rows]


def test_cells_come_back_as_they_were_and_no_letter_that_latex_reads_otherwise_is_left():
    rows = [["a & b", "50 %"], ["x_1", "$3"], ["{curly}", "#2"]]
    assert read_back(tabular(["one", "two"], rows, [False, True])) == rows
    text = escaped("\\ ~ ^ < > ± \N{EN DASH} a")
    assert (
        text == r"\textbackslash{} \textasciitilde{} \textasciicircum{} \textless{} \textgreater{} "
        r"$\pm$ -- a"
    )


@pytest.mark.parametrize("cell", ["[1, 2]", "[x"])
def test_a_bracket_is_no_argument_of_the_line_above(cell):
    assert (
        tabular(["head", ""], [["a", ""], [cell, ""]], [False, False]).count(f"\n{{}}{cell} &") == 1
    )
