"""List words that this project does not use, and sentences that are too long.

Pages for users, the templates of pages and messages, and the comments, docstrings and messages of
the package are read. Code in pages, research notes and strings without a space (settings, names of
random streams) are skipped::

    python tools/prose.py            # counts
    python tools/prose.py --verbose  # each place
"""

from __future__ import annotations

import argparse
import io
import json
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONGEST = 30  # words of a sentence
WRITTEN = (".py", ".toml", ".txt", ".html", ".md", ".template")

DIALECT = (
    r"mend(?:s|ed|ing)?|nobody|everybody|somebody|what(?:so)?ever|whoever|of which|of "
    r"whom|(?<!there )(?:is|are) no|"
    r"told|tells|say(?:s|ing)? so|hear[ds]?|feels?|forgets|forgot|remembers?|knows "
    r"nothing|anew|may not|that nothing|"
    r"a line a|in the place of|takes? in|goes on|go on|aloud|ourselves"
)
BRITISH = (
    r"(?:recogni|generali|summari|normali|optimi|minimi|maximi|initiali|organi|reali|factori|memori|penali)"
    r"s(?:e|es|ed|ing|ation)|colours?|behaviours?|neighbours?(?:ing|hood)?|favours?|learnt|grey|centred|modelled|judgement|whilst"
)
SKIPPED = (
    r"(?s)<script>.*?</script>|<style>.*?</style>",
    r"(?s)\{[%#].*?[%#]\}|\{\{.*?\}\}",
    r"<[^>]*>|`[^`\n]*`|\{[^{}\n]*\}",
)
WORDS = re.compile(rf"\b(?:{DIALECT}|{BRITISH})\b", re.IGNORECASE)


def pages() -> list[Path]:
    """Return the pages and notebooks for users: no research notes."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")]
    return sorted(path for path in found if path.parent.name != "research")


def prose_of_page(path: Path) -> str:
    """Return a page's text with its line breaks; code, tables' rules and links' targets are
    blank.
    """
    written = path.read_text("utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(written)["cells"]
        written = "\n\n".join(
            "".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"
        )
    text = re.sub(
        r"^ *```.*?^ *```", lambda found: "\n" * found[0].count("\n"), written, flags=re.M | re.S
    )
    return re.sub(r"`[^`\n]*`|\]\([^)]*\)|<[^>]*>", " x ", text)


def prose_of_code(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of a module's comments and strings with spaces, or of a whole template or
    TOML file.
    """
    if path.suffix != ".py":
        text = path.read_text("utf-8")
        for skipped in SKIPPED:
            text = re.sub(skipped, lambda found: " x " + "\n" * found[0].count("\n"), text)
        yield from enumerate(text.splitlines(), 1)
        return
    parts = (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1))
    for token in tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline):
        if token.type in parts and " " in token.string:
            text = re.sub(r"``.*?``|`[^`]*`|\{[^{}]*\}", " x ", token.string, flags=re.S)
            yield token.start[0], text


def package() -> list[tuple[str, int, str]]:
    """Return (place, line, text) of all comments and strings with spaces in the package, and of its
    templates.
    """
    files = sorted(p for p in (ROOT / "src" / "fedunseen").rglob("*") if p.suffix in WRITTEN)
    return [
        (p.relative_to(ROOT).as_posix(), line, text)
        for p in files
        for line, text in prose_of_code(p)
    ]


def found_words(texts: list[tuple[str, int, str]]) -> list[str]:
    """Return ``place:line: word`` for each word of the list."""
    return [
        f"{place}:{line + text.count(chr(10), 0, match.start())}: {match[0]}"
        for place, line, text in texts
        for match in WORDS.finditer(text)
    ]


def long_sentences(text: str) -> list[str]:
    """Return the sentences of a page that have too many words; rows of tables and headings are no
    sentences.
    """
    lines = "\n".join("" if re.match(r"\s*[|#]", line) else line for line in text.split("\n"))
    blocks = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", lines)
    sentences = [
        s for block in blocks for s in re.split(r"(?<=[.:;?!])\s+", " ".join(block.split()))
    ]
    return [s for s in sentences if len(s.split()) > LONGEST]


def main() -> None:
    """Print the counts, and each place with ``--verbose``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--verbose", action="store_true", help="print each place")
    verbose = parser.parse_args().verbose
    written = {path.relative_to(ROOT).as_posix(): prose_of_page(path) for path in pages()}
    results = {
        "words in pages": found_words([(place, 1, text) for place, text in written.items()]),
        "words in the package": found_words(package()),
        "long sentences in pages": [
            f"{place}: {s}" for place, text in written.items() for s in long_sentences(text)
        ],
    }
    for name, places in results.items():
        print(f"{name}: {len(places)}")
        if verbose:
            print(*(f"    {place}" for place in places), sep="\n")


if __name__ == "__main__":
    main()
