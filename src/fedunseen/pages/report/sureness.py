"""The section of a report that says how sure answers are, and whether that holds."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedunseen.confidence.explanation import Part, said_shares
from fedunseen.confidence.places import Places
from fedunseen.core.text import percent
from fedunseen.pages.report.charts import Curve, Scale, line_chart
from fedunseen.pages.report.parts import Content, Facts
from fedunseen.pages.report.svg import Floats, Frame, circle, image_source, path, svg, text

_COLORS = {"seen": "blue", "unseen": "orange"}
_SIDE = 64  # pixels of a picture under its heat
_APART = 13  # pixels between the names of two points


def confidence(facts: Facts) -> Content:
    """Draw what stated probabilities are worth on the test samples."""
    numbers = facts.run.result.get("confidence")
    if numbers is None:
        return None
    shares = np.linspace(5.0, 100.0, 20)
    others = {k: point for k, point in numbers.get("priors", {}).items() if k != facts.prior}
    surest = [
        Curve(np.array(values), f"{kind} classes", _COLORS[kind])
        for kind, values in numbers["risk_coverage"].items()
    ]
    risk = line_chart(
        surest,
        "right among the surest",
        shares,
        Scale(100.0, "%"),
        "percent of answers, surest first",
        legend=True,
    )
    return {
        "found": numbers,
        "tested": {
            kind: sum(row[0] for row in rows) for kind, rows in numbers["reliability"].items()
        },
        "shown": bool(facts.run.result.get("shown")),
        "reliability": _reliability(numbers["reliability"]),
        "risk": risk,
        "trade": _trade(
            numbers["trade"],
            float(facts.run.result["calibration_factor"]),
            others,
        ),
        "priors": others,
        "prior": facts.prior,
    }


def mistakes(facts: Facts) -> Content:
    """Return the most confident wrong answers, with reasons: pictures, or rows of a table."""
    wrong = facts.tensors.get("wrong")
    if wrong is None or not len(wrong):
        return None
    tensors = facts.tensors
    images = tensors.get("wrong_images")
    why = reasons_of(facts, "wrong")
    rows = []
    for place, sample in enumerate(wrong.tolist()):
        rows.append(
            {
                "true": facts.names[tensors["labels"][sample]],
                "answer": facts.names[tensors["gzsl_answers"][sample]],
                "stated": percent(float(tensors["stated"][sample])),
                "why": why[place],
                "sources": [] if images is None else pictured(facts, "wrong", place, images[place]),
            }
        )
    return {"rows": rows, "pictures": images is not None}


def reasons_of(facts: Facts, name: str) -> list[str]:
    """Return in words which classes speak for each of the recorded answers; "" where none do."""
    by = facts.tensors.get(f"{name}_by")
    if by is None:
        return [""] * len(facts.tensors.get(name, facts.tensors.get(f"{name}_labels", ())))
    shares = facts.tensors[f"{name}_share"]
    return [
        said_shares(
            [
                Part(facts.names[c], value)
                for c, value in zip(classes, values, strict=True)
                if c >= 0
            ]
        )
        for classes, values in zip(by.tolist(), shares.tolist(), strict=True)
    ]


def pictured(facts: Facts, name: str, place: int, pixels: Floats) -> list[str]:
    """Return a picture as an address and, where places are recorded, the picture under its heat."""
    addresses = [image_source(pixels)]
    heat = facts.tensors.get(f"{name}_places")
    if heat is not None:
        planes = pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)
        over = Places(heat[place].astype(np.float64), 0.0, 0.0).over(planes, _SIDE)
        addresses.append(image_source(np.asarray(over, dtype=np.float32) / 255))
    return addresses


def _reliability(kinds: Mapping[str, Sequence[Sequence[float]]]) -> str:
    """Draw the share of right answers by what was stated; on the diagonal both agree."""
    frame = Frame((0.0, 100.0), (0.0, 100.0), height=240, top=34)
    marks = frame.axes("answers that are right", "stated probability", range(0, 101, 25), "%")
    diagonal = f"M{frame.px(0):g} {frame.py(0):g}L{frame.px(100):g} {frame.py(100):g}"
    marks.append(path(diagonal, "level"))
    words = []
    for kind, rows in kinds.items():
        total = sum(row[0] for row in rows)
        for count, stated, right in rows:
            radius = 2.5 + 8.0 * (count / total) ** 0.5
            marks.append(circle(frame.px(stated), frame.py(right), radius, _COLORS[kind]))
            words.append(f"{kind}: of {count:g} answers at {stated:.0f} %, {right:.0f} % are right")
    return svg(marks, frame.width, frame.height, "; ".join(words))


def _trade(
    points: Sequence[Sequence[float]], offset: float, priors: Mapping[str, Sequence[float]]
) -> str | None:
    """Draw U against S over all offsets, with the chosen one and those of other priors; None
    without unseen classes.
    """
    if not points:
        return None
    frame = Frame((0.0, 120.0), (0.0, 100.0), height=240, top=34)  # with room for names
    marks = frame.axes("U, unseen classes", "S, seen classes", range(0, 101, 25), "%")
    ordered = sorted(points, key=lambda point: point[0])
    line = "L".join(f"{frame.px(s):.1f} {frame.py(u):.1f}" for _, u, s in ordered)
    marks.append(path(f"M{line}", "line", style="stroke:var(--green)"))
    words = []
    lowest = float(frame.base)
    for prior, (_, u, s) in sorted(priors.items(), key=lambda item: item[1][1]):
        x = frame.px(s)
        y = frame.py(u)
        marks.append(circle(x, y, 3.5, "grey"))
        lowest = min(y - 3, lowest - _APART)  # no line runs above and to the right of a point
        marks.append(text(x + 8, lowest, prior))
        words.append(f"{prior}: U {u:.1f} %, S {s:.1f} %")
    chosen = min(points, key=lambda point: abs(point[0] - offset))
    marks.append(circle(frame.px(chosen[2]), frame.py(chosen[1]), 5, "green"))
    words.append(f"chosen: U {chosen[1]:.1f} %, S {chosen[2]:.1f} %")
    return svg(
        marks, frame.width, frame.height, f"U against S over all offsets; {'; '.join(words)}"
    )
