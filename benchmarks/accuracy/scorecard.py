"""The claims of the four papers, and what the measurements here say of each:
``python benchmarks/accuracy/scorecard.py``.

``scorecard.toml`` has a claim each: an effect, positive where it agrees with the paper, and half of
its 95 % interval. A claim is *confirmed* where the interval lies above zero and *refuted* where it
lies below, both only where the rows were tuned alike, and *undecided* otherwise; ``why`` then says
the reason. A row with the settings that the paper prints has nothing to tune: its claim can be
*refuted as printed*, for these data, and is never confirmed by it. What follows from sizes alone is
*counted*, which is no measurement. An interval has to be over seeds or class splits.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal

from fedunseen.core.settings import Settings

FILE = Path(__file__).with_name("scorecard.toml")
Verdict = Literal["confirmed", "refuted", "refuted as printed", "counted", "undecided"]


class Claim(Settings):
    """A claim of a paper."""

    paper: str
    where: str
    says: str
    effect: float | None = None
    """In percentage points where nothing else is said; unset where nothing was measured."""
    half: float | None = None
    """Half of the 95 % interval over at least three seeds, or class splits with a seed each; unset
    of fewer.
    """
    splits: int | None = None
    """How many class splits were measured; unset where no classes are split."""
    tuned: bool = False
    """Whether both rows had as many validation runs for choices of their own, or nothing was there
    to choose.
    """
    printed: bool = False
    """Whether the paper's row has the settings that the paper prints."""
    counted: bool = False
    """Whether the claim is a matter of counting."""
    setting: str
    command: str
    why: str = ""
    """What limits the verdict."""

    @property
    def verdict(self) -> Verdict:
        """What the numbers say by the rule above."""
        if self.counted:
            return "counted"
        if self.effect is None or self.half is None or abs(self.effect) <= self.half:
            return "undecided"
        if self.tuned:
            return "confirmed" if self.effect > 0 else "refuted"
        return "refuted as printed" if self.printed and self.effect < 0 else "undecided"

    @property
    def cells(self) -> list[str]:
        """Return the claim as a row of a table."""
        effect = "" if self.effect is None else f"{self.effect:+.1f}"
        effect += "" if self.half is None else f" ± {self.half:.1f}"
        tuned = "yes" if self.tuned else "no"
        setting = f"{self.setting}. {self.why}" if self.why else self.setting
        return [
            self.where,
            self.says,
            f"**{self.verdict}**",
            effect,
            str(self.splits or ""),
            tuned,
            setting,
            f"`{self.command}`",
        ]


def read_claims() -> list[Claim]:
    """Return the claims in the order of the file."""
    return [Claim.model_validate(one) for one in tomllib.loads(FILE.read_text("utf-8"))["claim"]]


def table(claims: list[Claim]) -> str:
    """Return the scorecard as Markdown, a table for each paper."""
    heads = [
        "where",
        "claim",
        "verdict",
        "effect",
        "class splits",
        "tuned alike",
        "setting",
        "command",
    ]
    found = []
    for paper in dict.fromkeys(claim.paper for claim in claims):
        own = [claim for claim in claims if claim.paper == paper]
        rows = [heads, ["---"] * len(heads), *(claim.cells for claim in own)]
        found.append(f"### {paper}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows))
    counts = {
        name: sum(claim.verdict == name for claim in claims)
        for name in ("confirmed", "refuted", "refuted as printed", "counted", "undecided")
    }
    said = ", ".join(f"{count} {name}" for name, count in counts.items())
    return f"{len(claims)} claims: {said}.\n\n" + "\n\n".join(found) + "\n"


if __name__ == "__main__":
    print(table(read_claims()), end="")
