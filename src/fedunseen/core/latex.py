r"""Tables as LaTeX, in the manner of the package booktabs: ``\input`` the file within a document
that loads it.
"""

import re
from collections.abc import Sequence

from fedunseen.core.text import shown

_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "\N{PLUS-MINUS SIGN}": r"$\pm$", "\N{EN DASH}": "--", "\N{MINUS SIGN}": "$-$",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "\N{MIDDLE DOT}": r"$\cdot$",
}  # fmt: skip


def escaped(words: str) -> str:
    r"""Return words as LaTeX shows them."""
    return "".join(_SPECIAL.get(letter, letter) for letter in " ".join(shown(words).split()))


def tabular(heads: Sequence[str], lines: Sequence[Sequence[str]], numbers: Sequence[bool]) -> str:
    r"""Write a table as a ``tabular`` of booktabs."""
    rows = [_row(line) for line in lines]
    columns = "".join("r" if right else "l" for right in numbers)
    text = [
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        _row(heads),
        r"\midrule",
        *rows,
        r"\bottomrule",
    ]
    return "\n".join([*text, r"\end{tabular}"]) + "\n"


def _row(cells: Sequence[str]) -> str:
    # a row that begins with a bracket would be the argument of the \\ before it
    return re.sub(r"^(?=\[)", "{}", " & ".join(map(escaped, cells))) + r" \\"
