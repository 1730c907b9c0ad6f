"""Charts: curves by round, curves over a setting, and bars."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedunseen.pages.report.svg import (
    Floats,
    Frame,
    circle,
    path,
    rect,
    rounded,
    shortened,
    svg,
    text,
    ticks,
)

_HOVERED = 120  # rounds up to which every point shows its value when pointed at


@dataclass(frozen=True, eq=False)
class Curve:
    """One line of a chart."""

    y: Floats
    label: str
    color: str = "blue"
    low: Floats | None = None
    high: Floats | None = None
    dashed: bool = False

    def at(self, places: NDArray[np.bool_]) -> "Curve":
        """Return the curve at some of its places."""
        low, high = (None if edge is None else edge[places] for edge in (self.low, self.high))
        return replace(self, y=self.y[places], low=low, high=high)

    @property
    def highest(self) -> float:
        """The highest value to draw, at least 0."""
        return max(float(np.nanmax(v, initial=0.0)) for v in (self.y, self.high) if v is not None)

    @property
    def lowest(self) -> float:
        """The lowest value to draw, at most 0."""
        return min(float(np.nanmin(v, initial=0.0)) for v in (self.y, self.low) if v is not None)

    def interval(self, i: int) -> tuple[float, float] | None:
        """Return the edges of the shaded area at a place, where both are known."""
        if self.low is None or self.high is None or not np.isfinite(self.low[i] + self.high[i]):
            return None
        return float(self.low[i]), float(self.high[i])

    def drawn(self, frame: Frame, x: Floats) -> str:
        """Return the line."""
        css = "line dashed" if self.dashed else "line"
        return path(frame.line(x, self.y), css, stroke=f"var(--{self.color})")


class Level(NamedTuple):
    """A dotted horizontal line: with a color the legend names it, without one its name stands
    beside it.
    """

    label: str
    value: float
    color: str = ""


class Scale(NamedTuple):
    """The y axis: its upper end, by default what the data need, and the unit behind its numbers."""

    top: float | None = None
    unit: str = ""


class Bar(NamedTuple):
    """One bar of a chart."""

    share: float
    label: str
    title: str
    color: str


def line_chart(
    curves: Sequence[Curve],
    title: str,
    x: Floats,
    scale: Scale = Scale(),  # noqa: B008 - it cannot change
    x_label: str = "round",
    levels: Sequence[Level] = (),
    mark: float | None = None,
    legend: bool = False,
) -> str:
    """Draw curves over common x values."""
    top = max(*(curve.highest for curve in curves), 1e-9) * 1.05 if scale.top is None else scale.top
    bottom = min(curve.lowest for curve in curves) * 1.05
    rows, height = (
        _legend([*curves, *(level for level in levels if level.color)]) if legend else ([], 34)
    )
    frame = Frame((float(x[0]), float(x[-1])), (bottom, top), height=206 + height, top=height)
    whole = [t for t in ticks(*frame.x, about=5) if t == round(t)] or [float(x[0])]
    if x[0] not in whole and len(whole) > 1 and (whole[0] - x[0]) * 2 > whole[1] - whole[0]:
        whole.insert(0, float(x[0]))
    marks = frame.axes(title, x_label, whole, scale.unit)
    for curve in curves:
        if curve.low is not None and curve.high is not None:
            marks.append(
                path(frame.area(x, curve.low, curve.high), "band", fill=f"var(--{curve.color})")
            )
    marks += _levels(frame, levels)
    for curve in reversed(curves):
        marks.append(curve.drawn(frame, x))
        if np.isfinite(curve.y).sum() == 1:
            at = int(np.isfinite(curve.y).argmax())
            marks.append(circle(frame.px(x[at]), frame.py(curve.y[at]), 3, curve.color))
    if mark is not None:
        marks += _mark(frame, x, curves[0], mark, scale.unit)
    marks += _drawn_legend(frame, rows)
    if len(x) <= _HOVERED:
        marks += _hovers(frame, x, curves, x_label, scale.unit)
    last = [
        f"{c.label} ends at {rounded(c.y[-1], 1)}{scale.unit}"
        for c in curves
        if np.isfinite(c.y[-1])
    ]
    return svg(marks, frame.width, frame.height, f"{title} by {x_label}: {', '.join(last)}")


def _levels(frame: Frame, levels: Sequence[Level]) -> Iterator[str]:
    """Draw dotted horizontal lines within the frame."""
    for level in levels:
        if level.value > frame.y[1]:
            continue
        y = frame.py(level.value)
        style = {"style": f"stroke:var(--{level.color})"} if level.color else {}
        yield path(f"M{frame.left} {y:g}H{frame.end}", "level", **style)
        if not level.color:
            yield text(frame.end, y - 5, level.label, "tick end")


def _mark(frame: Frame, x: Floats, curve: Curve, mark: float, unit: str) -> list[str]:
    """Mark one point of a curve and write its value beside it."""
    at = int(np.abs(x - mark).argmin())
    if not np.isfinite(curve.y[at]):
        return []
    px = frame.px(x[at])
    py = frame.py(curve.y[at])
    side = "end" if px > frame.width / 2 else ""
    above = py - 10 if py - 10 > frame.top + 6 else py + 20
    return [
        path(f"M{px:g} {py:g}V{frame.base}", "stem"),
        circle(px, py, 4.5, curve.color, css="mark"),
        text(px, above, rounded(curve.y[at], 1) + unit, f"value {side}"),
    ]


def _legend(lines: Sequence[Curve | Level]) -> tuple[list[tuple[int, int, Curve | Level]], int]:
    """Place the names of lines in rows, (row, offset, line), and return what height the drawing
    begins at.
    """
    placed = []
    row = 0
    offset = 0
    for line in lines:
        wide = 34 + 7 * len(line.label)
        if offset and offset + wide > 360:
            row = row + 1
            offset = 0
        placed.append((row, offset, line))
        offset += wide
    return placed, 34 + 17 * (1 + row)


def _drawn_legend(frame: Frame, placed: Sequence[tuple[int, int, Curve | Level]]) -> Iterator[str]:
    """Draw the names of lines where :func:`_legend` places them."""
    for row, offset, line in placed:
        y = 29 + 17 * row
        color = f"var(--{line.color})"
        place = f"M{frame.left + offset} {y}h16"
        if isinstance(line, Level):
            yield path(place, "level", style=f"stroke:{color}")
        else:
            yield path(place, "line dashed" if line.dashed else "line", stroke=color)
        yield text(frame.left + offset + 21, y + 4, line.label)


def _hovers(
    frame: Frame, x: Floats, curves: Sequence[Curve], x_label: str, unit: str
) -> Iterator[str]:
    """Yield invisible strips that show the curves' values at each x when pointed at."""
    wide = (frame.end - frame.left) / max(len(x) - 1, 1)
    for i, at in enumerate(x.tolist()):
        words = [f"{x_label} {rounded(at)}"]
        for curve in curves:
            if np.isfinite(curve.y[i]):
                edges = curve.interval(i)
                between = f" ({rounded(edges[0], 1)} to {rounded(edges[1], 1)})" if edges else ""
                words.append(f"{curve.label} {rounded(curve.y[i], 2)}{unit}{between}")
        left = max(frame.px(at) - wide / 2, 0)
        yield rect(left, frame.top, wide, frame.base - frame.top, ", ".join(words), css="hover")


def value_chart(
    curves: Sequence[Curve],
    title: str,
    values: Sequence[str],
    x_label: str,
    each: Sequence[Sequence[Sequence[float]]] = (),
) -> str:
    """Draw curves of percentages over the values of a setting, at equal distances, with the single
    numbers ``each``.
    """
    single = [number for of_curve in each for of_value in of_curve for number in of_value]
    highest = max([*(curve.highest for curve in curves), *single])
    frame = Frame((-0.4, len(values) - 0.6), (0.0, rounded_up(highest)))
    marks = frame.axes(title, x_label, (), "%")
    for i, value in enumerate(values):
        marks.append(text(frame.px(i), frame.base + 16, shortened(value), "tick mid"))
    x = np.arange(len(values), dtype=np.float64)
    for place, curve in reversed(list(enumerate(curves))):
        marks.append(curve.drawn(frame, x))
        for i in np.flatnonzero(np.isfinite(curve.y)).tolist():
            name = f"{curve.label} {x_label} {values[i]}".strip()
            marks += _value_point(frame, curve, i, name, each[place][i] if each else ())
    best = [f"{c.label} up to {rounded(float(np.nanmax(c.y, initial=0.0)), 1)}%" for c in curves]
    return svg(marks, frame.width, frame.height, f"{title} over {x_label}: {', '.join(best)}")


def _value_point(
    frame: Frame, curve: Curve, i: int, name: str, each: Sequence[float]
) -> Iterator[str]:
    """Draw one point of a curve, its interval and the single numbers that it is the mean of."""
    px = frame.px(i)
    words = f"{name}: {curve.y[i]:.1f}%"
    color = curve.color
    if edges := curve.interval(i):
        low, high = edges
        words += f" (95 % interval {low:.1f} to {high:.1f})"
        bar = f"M{px:g} {frame.py(low):g}V{frame.py(min(high, frame.y[1])):g}"
        yield path(bar, "line", style="stroke-width:1.2", stroke=f"var(--{color})")
    for number in each:
        yield circle(px + 5, frame.py(number), 2, color, fill_opacity=".6")
    yield circle(px, frame.py(curve.y[i]), 4, color, words, css="point")


def bar_chart(groups: Mapping[str, Sequence[Bar | None]], title: str, label: str) -> str:
    """Draw groups of horizontal bars: the names of groups are longer than what fits below an
    upright bar.
    """
    left = 16 + 6.6 * max(map(len, groups), default=0)
    group = 16 * max(map(len, groups.values()), default=0) + 12
    marks = [text(0, 14, title, "title")]
    for place, (name, bars) in enumerate(groups.items()):
        y = 28 + place * group
        marks.append(text(left - 8, y + (group - 12) / 2 + 4, name, "tick end"))
        for i, bar in ((i, bar) for i, bar in enumerate(bars) if bar is not None):
            wide = (420 - left - 52) * bar.share
            fill = f"var(--{bar.color})"
            marks.append(rect(left, y + 16 * i, wide, 14, bar.title, css="filled", fill=fill))
            marks.append(text(left + wide + 6, y + 16 * i + 11, bar.label))
    return svg(marks, 420, 34 + group * len(groups), label)


def rounded_up(highest: float) -> float:
    """Return the upper end of an axis of percentages up to ``highest``: 100, or lower where all are
    low.
    """
    return 100.0 if highest > 50 else max(5 * float(np.ceil(highest * 1.08 / 5)), 5.0)
