"""Figures as inline SVG: pure functions of arrays. Colours are the page's CSS variables, so both colour schemes work.

A new figure is one more function here: make a :class:`Frame` for its axes, add marks to it, wrap it in :func:`svg`.
Charts are drawn 420 units wide, to stand in columns at about that many pixels and still be read on a phone.

Why no plotting library: a page must be one file that needs no network and no script. These figures say their values when
pointed at, follow the reader's light or dark scheme, read well at any width, and are announced by screen readers. A
library's SVG has fixed colours and no hover; its scripts would make every page megabytes.
"""

from __future__ import annotations

import base64
import hashlib
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Bar",
    "Curve",
    "Frame",
    "bar_chart",
    "class_colour",
    "confusion_map",
    "coverage_map",
    "embedding_map",
    "generated_map",
    "histogram",
    "holdings_map",
    "hue",
    "image_source",
    "line_chart",
    "plane_map",
    "raster",
    "rounded_up",
    "similarity_map",
    "small_map",
    "spread",
    "svg",
    "text",
    "ticks",
    "value_chart",
]

Floats = NDArray[np.float64]

CLASSES = 7  # that have colours of their own on the page of few-shot runs
LEFT, WIDE = 74, 700  # place and width of maps with a row for each client
_HOVERED = 120  # rounds up to which every point says its value when pointed at


@dataclass(frozen=True, eq=False)
class Curve:
    """One line of a chart.

    Attributes:
        y: (T,) values at the chart's x; NaN leaves a gap.
        label: its name in the legend and when pointed at.
        colour: a CSS variable of the page, without the dashes in front.
        low, high: (T,) the edges of a shaded area around it, or None.
        dashed: dashed instead of solid.
    """

    y: Floats
    label: str
    colour: str = "blue"
    low: Floats | None = None
    high: Floats | None = None
    dashed: bool = False

    def at(self, places: NDArray[np.bool_]) -> Curve:
        """Return the curve at some of its places."""
        low, high = (None if edge is None else edge[places] for edge in (self.low, self.high))
        return replace(self, y=self.y[places], low=low, high=high)


class Bar(NamedTuple):
    """One bar of a chart.

    Attributes:
        share: its length, as a share of the longest that there is room for.
        label: written beside it.
        title: said when pointed at.
        colour: a CSS variable of the page, without the dashes in front.
    """

    share: float
    label: str
    title: str
    colour: str


@dataclass(frozen=True)
class Frame:
    """The axes of a chart: data limits and the place of the plot within the drawing."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: int = 420
    height: int = 240
    left: int = 40
    right: int = 14
    top: int = 34
    bottom: int = 36
    whole: bool = False  # only whole numbers along the y axis

    def px(self, value: float) -> float:
        """Return the horizontal place of a value."""
        low, high = self.x
        share = (value - low) / (high - low) if high > low else 0.5
        return round(self.left + share * (self.width - self.left - self.right), 2)

    def py(self, value: float) -> float:
        """Return the vertical place of a value."""
        low, high = self.y
        share = (value - low) / (high - low) if high > low else 0.5
        return round(self.height - self.bottom - share * (self.height - self.top - self.bottom), 2)

    def path(self, x: Floats, y: Floats) -> str:
        """Return path data through the points (T,), lifted over those that are NaN."""
        parts, pen = [], "M"
        for a, b in zip(x.tolist(), y.tolist(), strict=True):
            if not math.isfinite(b):
                pen = "M"
                continue
            parts.append(f"{pen}{self.px(a):g} {self.py(b):g}")
            pen = "L"
        return "".join(parts)

    def area(self, x: Floats, low: Floats, high: Floats) -> str:
        """Return path data of the area between two curves (T,), where both are known."""
        known = np.isfinite(low) & np.isfinite(high)
        parts = []
        for run in np.split(np.arange(len(x)), np.flatnonzero(np.diff(known.astype(int))) + 1):
            if not known[run[0]]:
                continue
            points = [(x[i], high[i]) for i in run] + [(x[i], low[i]) for i in run[::-1]]
            parts.append("M" + "L".join(f"{self.px(a):g} {self.py(b):g}" for a, b in points) + "Z")
        return "".join(parts)

    def axes(self, title: str, x_label: str, x_ticks: Iterable[float], unit: str = "") -> list[str]:
        """Return title, grid, tick labels and axis label."""
        out = [text(0, 14, title, "title")]
        bottom = self.height - self.bottom
        for tick in ticks(*self.y):
            if self.whole and tick != round(tick):
                continue
            y = self.py(tick)
            out.append(f'<path class="rule" d="M{self.left} {y:g}H{self.width - self.right}"/>')
            out.append(text(self.left - 7, y + 4, _short(tick) + unit, "tick end"))
        for tick in x_ticks:
            out.append(text(self.px(tick), bottom + 16, _short(tick), "tick mid"))
        middle = (self.left + self.width - self.right) / 2
        out.append(text(middle, self.height - 4, x_label, "tick mid"))
        return out


def svg(parts: Iterable[str], width: float, height: float, label: str, css: str = "") -> str:
    """Wrap marks into one SVG that scales with the page and that a screen reader announces as ``label``."""
    return (
        f'<svg class="figure {css}" style="--natural:{width:.0f}px" viewBox="0 0 {width:.1f} {height:.1f}" '
        f'role="img" aria-label="{escape(label)}">' + "".join(parts) + "</svg>"
    )


def text(x: float, y: float, words: str, css: str = "tick", size: float | None = None) -> str:
    """Return words at a place; ``css`` says how they look, ``size`` how tall they are if not as usual."""
    style = f' style="font-size:{size:.1f}px"' if size is not None else ""
    return f'<text class="{css.strip()}"{style} x="{round(x, 1):g}" y="{round(y, 1):g}">{escape(words)}</text>'


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Return round numbers within [low, high], about as many as asked for.

    Example:
        >>> ticks(0, 100), ticks(1, 40), ticks(0, 3.1)
        ([0.0, 25.0, 50.0, 75.0, 100.0], [10.0, 20.0, 30.0, 40.0], [0.0, 1.0, 2.0, 3.0])
    """
    if high <= low:
        return [float(low)]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = min((power * m for m in (1, 2, 2.5, 5, 10)), key=lambda s: abs(math.log(s / rough)))
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def line_chart(
    curves: Sequence[Curve],
    title: str,
    x: Floats,
    top: float | None = None,
    x_label: str = "round",
    unit: str = "",
    level: tuple[str, float] | None = None,
    mark: float | None = None,
    legend: bool = False,
    levels: Sequence[tuple[str, float, str]] = (),
) -> str:
    """Draw curves over common x values.

    Args:
        curves: what to draw; the first one is in front and carries the mark.
        title: says what is on the y axis.
        x: (T,) common x values.
        top: upper end of the y axis, which starts at 0, or below where there are values below; by default what the data
            need.
        x_label: says what is on the x axis.
        unit: written behind the y axis' numbers.
        level: a name and a value to draw as a dotted horizontal line.
        mark: the x value to mark.
        legend: name the curves below the title.
        levels: names, values and colours of further dotted lines, which the legend names.
    """
    if top is None:
        tops = [np.nanmax(values, initial=0.0) for c in curves for values in (c.y, c.high) if values is not None]
        top = max([*map(float, tops), 1e-9]) * 1.05
    lows = [np.nanmin(values, initial=0.0) for c in curves for values in (c.y, c.low) if values is not None]
    bottom = min([*map(float, lows), 0.0]) * 1.05
    dotted = [Curve(np.array([value]), name, colour) for name, value, colour in levels]
    rows = _legend([*curves, *dotted]) if legend else []
    height = 34 + 17 * (1 + max((row for row, _, _ in rows), default=-1)) if rows else 34
    frame = Frame((float(x[0]), float(x[-1])), (bottom, top), height=206 + height, top=height)
    whole = [t for t in ticks(*frame.x, about=5) if t == round(t)] or [float(x[0])]
    if x[0] not in whole and len(whole) > 1 and (whole[0] - x[0]) * 2 > whole[1] - whole[0]:
        whole.insert(0, float(x[0]))
    out = frame.axes(title, x_label, whole, unit)
    for curve in curves:
        if curve.low is not None and curve.high is not None:
            area = frame.area(x, curve.low, curve.high)
            out.append(f'<path class="band" fill="var(--{curve.colour})" d="{area}"/>')
    out += _levels(frame, level, dotted)
    for curve in reversed(curves):
        dash = " dashed" if curve.dashed else ""
        out.append(f'<path class="line{dash}" stroke="var(--{curve.colour})" d="{frame.path(x, curve.y)}"/>')
        if np.isfinite(curve.y).sum() == 1:
            at = int(np.isfinite(curve.y).argmax())
            px, py = frame.px(x[at]), frame.py(curve.y[at])
            out.append(f'<circle cx="{px}" cy="{py}" r="3" fill="var(--{curve.colour})"/>')
    if mark is not None:
        out += _mark(frame, x, curves[0], mark, unit)
    out += _named_lines(frame, rows, dotted)
    if len(x) <= _HOVERED:
        out += _hovers(frame, x, curves, x_label, unit)
    last = [f"{c.label} ends at {_short(c.y[-1], 1)}{unit}" for c in curves if np.isfinite(c.y[-1])]
    return svg(out, frame.width, frame.height, f"{title} by {x_label}: {', '.join(last)}")


def _levels(frame: Frame, level: tuple[str, float] | None, dotted: Sequence[Curve]) -> Iterator[str]:
    """Draw dotted horizontal lines, of which ``level`` has its name beside it."""
    right = frame.width - frame.right
    if level is not None and level[1] <= frame.y[1]:
        y = frame.py(level[1])
        yield f'<path class="level" d="M{frame.left} {y:g}H{right}"/>'
        yield text(right, y - 5, level[0], "tick end")
    for one in dotted:
        if one.y[0] <= frame.y[1]:
            across = f"M{frame.left} {frame.py(one.y[0]):g}H{right}"
            yield f'<path class="level" style="stroke:var(--{one.colour})" d="{across}"/>'


def _mark(frame: Frame, x: Floats, curve: Curve, mark: float, unit: str) -> list[str]:
    """Mark one point of a curve and write its value beside it."""
    at = int(np.abs(x - mark).argmin())
    if not np.isfinite(curve.y[at]):
        return []
    px, py = frame.px(x[at]), frame.py(curve.y[at])
    side = "end" if px > frame.width / 2 else ""
    above = py - 10 if py - 10 > frame.top + 6 else py + 20
    return [
        f'<path class="stem" d="M{px:g} {py:g}V{frame.height - frame.bottom}"/>',
        f'<circle class="mark" cx="{px:g}" cy="{py:g}" r="4.5" fill="var(--{curve.colour})"/>',
        text(px, above, _short(curve.y[at], 1) + unit, f"value {side}"),
    ]


def _legend(curves: Sequence[Curve]) -> list[tuple[int, int, Curve]]:
    """Place the names of curves in rows: (row, offset, curve)."""
    placed, row, offset = [], 0, 0
    for curve in curves:
        wide = 34 + 7 * len(curve.label)
        if offset and offset + wide > 360:
            row, offset = row + 1, 0
        placed.append((row, offset, curve))
        offset += wide
    return placed


def _named_lines(frame: Frame, placed: Sequence[tuple[int, int, Curve]], dotted: Sequence[Curve] = ()) -> Iterator[str]:
    """Draw the names of curves where :func:`_legend` places them."""
    for row, offset, curve in placed:
        y = 29 + 17 * row
        place = f"M{frame.left + offset} {y}h16"
        if any(curve is one for one in dotted):
            yield f'<path class="level" style="stroke:var(--{curve.colour})" d="{place}"/>'
        else:
            dash = " dashed" if curve.dashed else ""
            yield f'<path class="line{dash}" stroke="var(--{curve.colour})" d="{place}"/>'
        yield text(frame.left + offset + 21, y + 4, curve.label)


def _hovers(frame: Frame, x: Floats, curves: Sequence[Curve], x_label: str, unit: str) -> list[str]:
    """Return invisible strips that say the curves' values at each x when pointed at."""
    wide = (frame.width - frame.left - frame.right) / max(len(x) - 1, 1)
    tall, out = frame.height - frame.top - frame.bottom, []
    for i, at in enumerate(x.tolist()):
        said = [f"{x_label} {_short(at)}"]
        for curve in curves:
            if np.isfinite(curve.y[i]):
                spread = ""
                if curve.low is not None and curve.high is not None and np.isfinite(curve.low[i] + curve.high[i]):
                    spread = f" ({_short(curve.low[i], 1)} to {_short(curve.high[i], 1)})"
                said.append(f"{curve.label} {_short(curve.y[i], 2)}{unit}{spread}")
        left = max(frame.px(at) - wide / 2, 0)
        out.append(
            f'<rect class="hover" x="{left:.1f}" y="{frame.top}" width="{wide:.1f}" height="{tall}">'
            f"<title>{escape(', '.join(said))}</title></rect>"
        )
    return out


def histogram(values: Floats, title: str, x_label: str) -> str:
    """Draw how many of the percentages (n,) fall into each span of five, with their mean."""
    values = values[np.isfinite(values)]
    counts, edges = np.histogram(np.clip(values, 0, 100), bins=20, range=(0, 100))
    frame = Frame((0.0, 100.0), (0.0, float(max(counts.max(initial=1), 1)) * 1.12), whole=True)
    out = frame.axes(title, x_label, range(0, 101, 25))
    base = frame.height - frame.bottom
    for count, edge in zip(counts.tolist(), edges.tolist(), strict=False):
        if count:
            left, y = frame.px(edge) + 1, frame.py(count)
            out.append(
                f'<rect fill="var(--blue)" rx="1.5" x="{left:g}" y="{y:g}" width="{frame.px(edge + 5) - left - 1:.2f}" '
                f'height="{base - y:.2f}"><title>{edge:g} to {edge + 5:g} %: {count} classes</title></rect>'
            )
    if not len(values):
        return svg(out, frame.width, frame.height, f"{title}: no class was tested")
    mean = float(values.mean())
    side = "end" if mean > 50 else ""
    out.append(f'<path class="stem strong" d="M{frame.px(mean):g} {frame.top - 8}V{base}"/>')
    out.append(text(frame.px(mean) + (-6 if side else 6), frame.top, f"mean {mean:.1f} %", f"value {side}"))
    return svg(out, frame.width, frame.height, f"{title}: {len(values)} classes, mean {mean:.1f} percent")


def value_chart(
    curves: Sequence[Curve],
    title: str,
    values: Sequence[str],
    x_label: str,
    chosen: int | None = None,
    each: Sequence[Sequence[Sequence[float]]] | None = None,
    legend: bool = True,
) -> str:
    """Draw curves of percentages over the values of a setting, at equal distances.

    Args:
        curves: (m,) values each, one point a value of the setting; ``low`` and ``high`` are 95 % intervals.
        title: says what is on the y axis.
        values: (m,) as they are written.
        x_label: the setting's name.
        chosen: position of the value to mark with a vertical line, if any.
        each: for each curve and value the single numbers, drawn as small dots.
        legend: name the curves below the title.
    """
    rows = _legend(curves) if legend else []
    top = 34 + 17 * (1 + max((row for row, _, _ in rows), default=-1))
    single = [one for of_curve in each or () for of_value in of_curve for one in of_value]
    tops = [float(np.nanmax(v, initial=0.0)) for c in curves for v in (c.y, c.high) if v is not None]
    frame = Frame((-0.4, len(values) - 0.6), (0.0, rounded_up(max([*tops, *single]))), height=206 + top, top=top)
    out = frame.axes(title, x_label, (), "%")
    for i, value in enumerate(values):
        out.append(text(frame.px(i), frame.height - frame.bottom + 16, _cut(value), "tick mid"))
    if chosen is not None:
        out.append(f'<path class="stem strong" d="M{frame.px(chosen):g} {top}V{frame.height - frame.bottom}"/>')
        side, step = ("end", -5) if frame.px(chosen) > frame.width / 2 else ("", 5)
        out.append(text(frame.px(chosen) + step, frame.height - frame.bottom - 6, "chosen", f"tick {side}"))
    x = np.arange(len(values), dtype=np.float64)
    for place, curve in reversed(list(enumerate(curves))):
        dash = " dashed" if curve.dashed else ""
        out.append(f'<path class="line{dash}" stroke="var(--{curve.colour})" d="{frame.path(x, curve.y)}"/>')
        for i in np.flatnonzero(np.isfinite(curve.y)).tolist():
            out += _value_point(frame, curve, i, f"{curve.label} {x_label} {values[i]}", each[place][i] if each else ())
    out += _named_lines(frame, rows)
    best = [f"{c.label} up to {_short(float(np.nanmax(c.y, initial=0.0)), 1)}%" for c in curves]
    return svg(out, frame.width, frame.height, f"{title} over {x_label}: {', '.join(best)}")


def _value_point(frame: Frame, curve: Curve, i: int, name: str, each: Sequence[float]) -> Iterator[str]:
    """Draw one point of a curve, its interval and the single numbers that it is the mean of."""
    px, said, fill = frame.px(i), f"{name}: {curve.y[i]:.1f}%", f"var(--{curve.colour})"
    if curve.low is not None and curve.high is not None and np.isfinite(curve.low[i] + curve.high[i]):
        low, high = float(curve.low[i]), float(curve.high[i])
        said += f" (95 % interval {low:.1f} to {high:.1f})"
        bar = f"M{px:g} {frame.py(low):g}V{frame.py(min(high, frame.y[1])):g}"
        yield f'<path class="line" style="stroke-width:1.2" stroke="{fill}" d="{bar}"/>'
    for one in each:
        yield f'<circle cx="{px + 5:g}" cy="{frame.py(one):g}" r="2" fill="{fill}" fill-opacity=".6"/>'
    yield (
        f'<circle class="point" cx="{px:g}" cy="{frame.py(curve.y[i]):g}" r="4" fill="{fill}">'
        f"<title>{escape(said.strip())}</title></circle>"
    )


def bar_chart(groups: Mapping[str, Sequence[Bar | None]], title: str, label: str) -> str:
    """Draw groups of horizontal bars: the names of groups are longer than what fits below an upright bar.

    Args:
        groups: the bars of each group by its name; None leaves a gap.
        title: above it.
        label: what a screen reader announces.
    """
    left = 16 + 6.6 * max(map(len, groups), default=0)
    group = 16 * max(map(len, groups.values()), default=0) + 12
    out = [text(0, 14, title, "title")]
    for place, (name, bars) in enumerate(groups.items()):
        y = 28 + place * group
        out.append(text(left - 8, y + (group - 12) / 2 + 4, name, "tick end"))
        for i, bar in enumerate(bars):
            if bar is None:
                continue
            wide = (420 - left - 52) * bar.share
            out.append(
                f'<rect class="filled" fill="var(--{bar.colour})" x="{left:g}" y="{y + 16 * i:g}" '
                f'width="{wide:.2f}" height="14"><title>{escape(bar.title)}</title></rect>'
            )
            out.append(text(left + wide + 6, y + 16 * i + 11, bar.label, "tick"))
    return svg(out, 420, 34 + group * len(groups), label)


def rounded_up(highest: float) -> float:
    """Return the upper end of an axis of percentages up to ``highest``: 100, or lower where all are low.

    Example:
        >>> rounded_up(93.2), rounded_up(31.0), rounded_up(0.0)
        (100.0, 35.0, 5.0)
    """
    return 100.0 if highest > 50 else max(5 * float(np.ceil(highest * 1.08 / 5)), 5.0)


def hue(place: int) -> int:
    """Return the hue of the class at a place of a list, in degrees.

    Neighbours in the list get hues that are far apart: steps of the golden angle.
    """
    return round(place * 137.508 % 360)


def _plane(points: Floats, title: str, width: int = 420) -> tuple[Floats, Frame, list[str]]:
    """Return points (n, 2) of which only distances mean something, turned to lie as flat as possible, their frame, and
    what is drawn below them.
    """  # noqa: D205
    centred = points - points.mean(axis=0)
    points = centred @ np.linalg.svd(centred, full_matrices=False)[2].T
    low, high = points.min(axis=0), points.max(axis=0)
    middle, half = (low + high) / 2, np.maximum((high - low) / 2, 1e-9)
    half = np.array([half[0], max(half[1], half[0] * 0.4)]) * 1.08
    wide = width - 8
    tall = round(wide * float(half[1] / half[0]))
    frame = Frame(
        (middle[0] - half[0], middle[0] + half[0]), (middle[1] - half[1], middle[1] + half[1]),
        width=width, height=tall + 34, left=4, right=4, top=28, bottom=6,
    )  # fmt: skip
    out = [text(0, 14, title, "title")]
    out.append(f'<rect class="cells" x="{frame.left}" y="{frame.top}" width="{wide}" height="{tall}"/>')
    return points, frame, out


def spread(places: Floats, widths: Floats, height: float) -> Floats:
    """Move labels apart until no two overlap, each as little as it takes; those that stand free stay.

    Args:
        places: (n, 2) their middles.
        widths: (n,) how wide they are.
        height: how tall.

    Returns:
        (n, 2) where they stand then.

    Example:
        >>> spread(np.array([[50.0, 50.0], [52.0, 50.0], [200.0, 50.0]]), np.array([30.0, 30.0, 30.0]), 12.0).round()
        array([[ 50.,  44.],
               [ 52.,  56.],
               [200.,  50.]])
    """
    at = np.array(places, dtype=np.float64)
    order = np.arange(len(at))
    later = np.where(order[None, :] > order[:, None], 1.0, -1.0)[..., None]
    room = np.stack([(widths[:, None] + widths[None, :]) / 2, np.full((len(at), len(at)), height)], axis=-1)
    for _ in range(400):
        apart = at[None, :] - at[:, None]  # (n, n, 2) from one label to the other
        lack = room - np.abs(apart)
        over = (lack > 1e-6).all(axis=-1) & (order[None, :] != order[:, None])
        if not over.any():
            break
        nearest = np.eye(2)[lack.argmin(axis=-1)]  # the shorter way out
        towards = np.where(apart == 0, later, np.sign(apart))
        at -= (over[..., None] * nearest * towards * (lack / 2 + 0.05)).sum(axis=1)
    return at


def _labels(frame: Frame, means: Sequence[Floats], names: Sequence[str], size: float) -> list[str]:
    """Write names at the means (2,) of their points, moved apart where they would hide each other."""
    cut = [_cut(name) for name in names]
    places = np.array([[frame.px(float(x)), frame.py(float(y))] for x, y in means])
    placed = places
    if len(cut) <= 80:  # more have no room side by side, however they stand
        placed = spread(places, np.array([0.6 * size * len(name) + 3 for name in cut]), size)
    return [text(x, y + size * 0.35, name, "where", size) for (x, y), name in zip(placed.tolist(), cut, strict=True)]


def embedding_map(points: Floats, labels: NDArray[np.int64], names: Sequence[str], title: str) -> str:
    """Draw samples in the plane, coloured by class, with each class's name at its mean.

    Args:
        points: (n, 2).
        labels: (n,) positions in ``names``.
        names: what is written at the class means.
        title: above it.
    """
    points, frame, out = _plane(points, title)
    classes = np.unique(labels).tolist()
    for place, c in enumerate(classes):
        marks = "".join(f"M{frame.px(a):g} {frame.py(b):g}h0" for a, b in points[labels == c].tolist())
        out.append(
            f'<path class="dots" style="--hue:{hue(place)}" d="{marks}"><title>{escape(names[c])}</title></path>'
        )
    size = 12.0 if len(classes) <= 30 else 10.0
    out += _labels(frame, [points[labels == c].mean(axis=0) for c in classes], [names[c] for c in classes], size)
    return svg(out, frame.width, frame.height, f"{title}: {len(points)} samples of {len(classes)} classes")


def generated_map(
    points: Floats, labels: NDArray[np.int64], generated: NDArray[np.bool_], names: Sequence[str], title: str
) -> str:
    """Draw generated and real samples in one plane: circles and crosses, coloured by class (FZSL, Fig. 5).

    Args:
        points: (n, 2).
        labels: (n,) positions in ``names``.
        generated: (n,) whether the sample is generated.
        names: what is written at the mean of each class's real samples, or of the generated ones if there is none.
        title: above it.
    """
    points, frame, out = _plane(points, title, 760)
    classes = np.unique(labels).tolist()
    for place, c in enumerate(classes):
        for made, kind in ((True, "generated"), (False, "real")):
            own = points[(labels == c) & (generated == made)].tolist()
            if not own:
                continue
            step = "m-2.6 0a2.6 2.6 0 1 0 5.2 0a2.6 2.6 0 1 0-5.2 0" if made else "m-3-3l6 6m0-6l-6 6"
            marks = "".join(f"M{frame.px(a):g} {frame.py(b):g}{step}" for a, b in own)
            out.append(
                f'<path class="{kind}" style="--hue:{hue(place)}" d="{marks}">'
                f"<title>{escape(names[c])}, {kind}</title></path>"
            )
    size = 13.0 if len(classes) <= 30 else 10.0
    means = []
    for c in classes:
        mine = labels == c
        real = mine & ~generated
        means.append(points[real if real.any() else mine].mean(axis=0))
    out += _labels(frame, means, [names[c] for c in classes], size)
    words = f"{title}: {int(generated.sum())} generated and {int((~generated).sum())} real samples"
    return svg(out, frame.width, frame.height, f"{words} of {len(classes)} classes", "map")


def plane_map(
    points: Floats,
    labels: NDArray[np.int64],
    grid: NDArray[np.int64],
    corners: tuple[Sequence[float], Sequence[float]],
    names: Sequence[str],
    title: str,
    words: str,
) -> str:
    """Draw samples in the plane of two features over the classifier's answers there (FedFSL, Fig. 6).

    Args:
        points: (n, 2).
        labels: (n,) positions in ``names``; their colours are the page's ``--class-0`` and so on.
        grid: (G, G) positions of the answers at evenly spaced places, rows from low to high in the second feature.
        corners: the lowest and the highest of both features, where the first and the last of those places are.
        names: what is written at the mean of each class's samples.
        title: what it is; as ``words``, only said, not written.
        words: how good it is.
    """
    (x0, y0), (x1, y1) = corners
    half = [max(high - low, 1e-12) / max(len(grid) - 1, 1) / 2 for low, high in ((x0, x1), (y0, y1))]
    frame = Frame(
        (x0 - half[0], x1 + half[0]), (y0 - half[1], y1 + half[1]),
        width=300, height=300, left=0, right=0, top=0, bottom=0,
    )  # fmt: skip
    box = 'x="0" y="0" width="300" height="300"'
    out = [f'<rect class="cells" {box}/>']
    for k in np.unique(grid).tolist():
        out.append(_masked(box, (grid[::-1] == k).astype(np.float64), class_colour(k), 'class="region" '))
    for k in np.unique(labels).tolist():
        marks = "".join(f"M{frame.px(a):.1f} {frame.py(b):.1f}h0" for a, b in points[labels == k].tolist())
        said = f"<title>{escape(names[k])}</title>"
        out.append(f'<path class="samples" style="stroke:{class_colour(k)}" d="{marks}">{said}</path>')
    there = np.unique(labels).tolist()
    out += _labels(frame, [points[labels == k].mean(axis=0) for k in there], [names[k] for k in there], 14.0)
    return svg(out, frame.width, frame.height, f"{title}: {len(points)} samples of {len(names)} classes, {words}")


def class_colour(place: int) -> str:
    """Return the colour of the class at a place of a list: one that the colour-blind tell apart, while there are any.

    Example:
        >>> class_colour(0), class_colour(7)
        ('var(--class-0)', 'hsl(243 62% var(--dots))')
    """
    return f"var(--class-{place})" if place < CLASSES else f"hsl({hue(place)} 62% var(--dots))"


def small_map(values: Floats, title: str, words: str) -> str:
    """Draw a matrix (m, m) in [-1, 1] small, to stand in a row with others, with ``words`` below it."""
    out = [text(0, 12, title, "title"), raster(values, 0, 20, 180, 180), text(0, 215, words, "tick")]
    return svg(out, 180, 222, f"{title}, {words}: {len(values)} by {len(values)} classes")


def raster(values: Floats, x: float, y: float, width: float, height: float) -> str:
    """Draw a matrix in [-1, 1] as coloured cells: blue above 0, orange below, hatched grey where NaN.

    The matrix travels as greyscale PNGs that mask plain rectangles, so that its colours follow the page's scheme.
    """
    box = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    out = [f'<rect class="cells" {box}/>']
    for colour, part in (
        ("blue", np.clip(np.nan_to_num(values), 0, 1)),
        ("orange", np.clip(-np.nan_to_num(values), 0, 1)),
        ("unknown", np.isnan(values).astype(np.float64)),
    ):
        if part.any():
            out.append(_masked(box, part, f"var(--{colour})"))
    return "".join(out)


def _masked(box: str, pixels: Floats, fill: str, css: str = "") -> str:
    """Fill a box where pixels (h, w) in [0, 1] let the colour through."""
    source = image_source(pixels)
    name = "m" + hashlib.blake2b((box + source).encode(), digest_size=6).hexdigest()
    return (
        f'<mask id="{name}" maskUnits="userSpaceOnUse" {box}><image {box} preserveAspectRatio="none" '
        f'href="{source}"/></mask><rect {css}{box} fill="{fill}" mask="url(#{name})"/>'
    )


def image_source(pixels: NDArray[np.floating]) -> str:
    """Return a ``data:`` address holding pixels in [0, 1], (h, w) grey or (h, w, 3) colour, as PNG."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.round(np.clip(pixels, 0, 1) * 255).astype(np.uint8)).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _gaps(rows: int, columns: int, x: float, y: float, cell: tuple[float, float]) -> str:
    """Return lines in the page's colour between cells that are wide enough to be told apart."""
    across, down = cell
    path = ""
    if across >= 5:
        path += "".join(f"M{x + i * across:.2f} {y:g}v{rows * down:.2f}" for i in range(1, columns))
    if down >= 5:
        path += "".join(f"M{x:g} {y + i * down:.2f}h{columns * across:.2f}" for i in range(1, rows))
    return f'<path class="gap" d="{path}"/>' if path else ""


def _every(down: float) -> int:
    """Return every how many rows of a height there is room for a name."""
    return max(1, math.ceil(12 / down))


def _client_grid(
    values: Floats, names: Sequence[str], css: Sequence[str], clients: Sequence[str], above: float
) -> tuple[list[str], tuple[float, float], float]:
    """Draw a matrix (clients, columns) in [-1, 1] with names at both sides where there is room.

    Returns:
        The marks, the width and height of a cell, and where the matrix begins.
    """
    rows, columns = values.shape
    across, down = WIDE / columns, min(max(380 / rows, 2.5), 22)
    label = min(11.0, across * 0.98)
    named = label >= 6.5 and len(names) > 0
    top = above + (_tallest(names) * label * 0.6 if named else 0)
    out = [raster(values, LEFT, top, WIDE, rows * down), _gaps(rows, columns, LEFT, top, (across, down))]
    for i in range(0, rows, _every(down)):
        out.append(text(LEFT - 8, top + (i + 0.5) * down + 4, clients[i], "tick end"))
    if named:
        for j, name in enumerate(names):
            out.append(_upright(name, LEFT + (j + 0.7) * across, top - 5, label, css[j]))
    return out, (across, down), top


def holdings_map(
    counts: NDArray[np.int64],
    names: Sequence[str],
    held: int,
    idle: int,
    clients: Sequence[str],
    idle_words: str = "not trained on",
    counted: bool = False,
) -> str:
    """Draw who holds how much of which class.

    Args:
        counts: (K, C) training samples; columns in the order to draw, held ones first, then idle, then unseen ones.
        names: (C,) of the columns.
        held: how many columns are held by somebody.
        idle: how many are held by nobody although they are not unseen.
        clients: (K,) names of the rows.
        idle_words: what classes are that nobody holds although they are not unseen.
        counted: write the number of samples into each cell, where there is room.
    """
    rows, columns = counts.shape
    css = ["tick" if j < held else "tick none" for j in range(columns)]
    out, (across, down), top = _client_grid(np.sqrt(counts / max(counts.max(), 1)), names, css, clients, 30)
    left, wide, tall, every = LEFT, WIDE, rows * down, _every(down)
    if counted:
        out += _counts(counts, left, top, (across, down))
    totals, classes = counts.sum(axis=1), (counts > 0).sum(axis=1)
    longest = max(int(totals.max()), 1)
    for i in range(rows):
        y = top + (i + 0.5) * down
        out.append(
            f'<rect class="bar" x="{left + wide + 12}" y="{y - down * 0.3:.2f}" height="{down * 0.6:.2f}" '
            f'width="{44 * totals[i] / longest:.2f}"><title>{escape(clients[i])}: {classes[i]} classes, '
            f"{totals[i]} samples</title></rect>"
        )
        if i % every == 0:
            out.append(text(left + wide + 62, y + 4, f"{totals[i]:,}"))
    out.append(text(left + wide + 12, top - 8, "samples"))
    nobody = columns - held - idle
    start = 0
    for words, number, look, drop in (
        (f"{held} classes held by somebody", held, "held", 25),
        (f"{idle} {idle_words}", idle, "none end", 41),
        (f"{nobody} unseen: nobody holds them", nobody, "none end", 25),
    ):
        x, w = left + start * across, number * across
        start += number
        if not number:
            continue
        if look != "held":
            out.append(f'<rect class="nobody" x="{x:.2f}" y="{top:.2f}" width="{w:.2f}" height="{tall:.2f}"/>')
        out.append(f'<path class="bracket {look}" d="M{x + 1:.2f} {top + tall + 5:.2f}v5h{max(w - 2, 0):.2f}v-5"/>')
        out.append(text(x + w if "end" in look else x, top + tall + drop, words, f"tick {look}"))
    words = f"{rows} clients and {columns} classes: {held} are held by somebody, {columns - held} by nobody"
    return svg(out, left + wide + 106, top + tall + (48 if idle else 32), words, "map")


def _counts(counts: NDArray[np.int64], x: float, y: float, cell: tuple[float, float]) -> list[str]:
    """Return the numbers that stand in the cells of a map of counts; none where cells are too small for them."""
    across, down = cell
    size = min(11.0, down * 0.62, across / (0.66 * len(str(int(counts.max(initial=0))))))
    if size < 7:
        return []
    dark = np.sqrt(counts / max(int(counts.max(initial=0)), 1)) > 0.72
    return [
        text(x + (j + 0.5) * across, y + (i + 0.5) * down + size * 0.36, str(int(counts[i, j])),
             "cell strong" if dark[i, j] else "cell", size)
        for i, j in zip(*np.nonzero(counts), strict=True)
    ]  # fmt: skip


def coverage_map(cover: Floats, names: Sequence[str], groups: Sequence[tuple[str, int]], clients: Sequence[str]) -> str:
    """Draw who covers how much of which attribute (FZSL, Fig. 3 b).

    Args:
        cover: (K, a) sums of attributes; columns in the order to draw, group by group.
        names: (a,) of the columns, or none.
        groups: name and number of columns of each group, in order; one without a name is what belongs to none.
        clients: (K,) names of the rows.
    """
    rows, columns = cover.shape
    scaled = cover / max(float(np.abs(cover).max(initial=0.0)), 1e-12)
    out, (across, down), top = _client_grid(scaled, names, ["tick"] * columns, clients, 12)
    left, wide, tall = LEFT, WIDE, rows * down
    start = 0
    for name, number in groups:
        x, w = left + start * across, number * across
        start += number
        words = name or "no group"
        bracket = f"M{x + 1:.2f} {top + tall + 5:.2f}v5h{max(w - 2, 0):.2f}v-5"
        out.append(f'<path class="bracket held" d="{bracket}"><title>{escape(words)}: {number}</title></path>')
        if 6.6 * len(words) <= w:
            out.append(text(x + w / 2, top + tall + 25, words, "tick mid"))
        elif rows and w >= 13:  # too narrow to lie down
            out.append(_downright(words, x + w / 2 + 4, top + tall + 16))
    standing = [name or "no group" for name, n in groups if 6.6 * len(name or "no group") > n * across >= 13]
    below = 16 + max(32 if groups else 8, _tallest(standing) * 6.4 + 8 if standing else 0)
    words = f"{rows} clients and {columns} attributes" + (f" in {len(groups)} groups" if groups else "")
    return svg(out, left + wide + 106, top + tall + below - 8, words, "map")


def _downright(name: str, x: float, y: float) -> str:
    """Return words that end below a place, read from the bottom up."""
    return f'<g transform="translate({x:.1f} {y:.1f}) rotate(-90)">{text(0, 0, _cut(name), "tick end")}</g>'


def similarity_map(values: Floats, names: Sequence[str], marked: NDArray[np.bool_], title: str) -> str:
    """Draw a similarity matrix.

    Args:
        values: (m, m) in [-1, 1], in the order to draw.
        names: (m,) of the rows; written where there is room.
        marked: (m,) the unseen classes, marked along the edge.
        title: above it.
    """
    count, label = len(values), min(10.0, 330 / max(len(values), 1))
    named = label >= 6.0
    left = 16 + (_tallest(names) * label * 0.56 if named else 0)
    size = 420.0 - left
    cell = size / count
    out = [text(0, 14, title, "title")]
    out.append(raster(values, left, 28, size, size))
    out.append(_gaps(count, count, left, 28, (cell, cell)))
    for i in range(count):
        if named:
            y = 28 + (i + 0.5) * cell + label * 0.35
            css = "tick end none" if marked[i] else "tick end"
            out.append(text(left - 8, y, _cut(names[i]), css, label))
    edge = ""
    for i in np.flatnonzero(marked).tolist():
        edge += f"M{left - 3:g} {28 + i * cell:.2f}v{cell:.2f}M{left + i * cell:.2f} {31 + size:.2f}h{cell:.2f}"
    out.append(f'<path class="edge" d="{edge}"/>')
    return svg(out, 420, 28 + size + 8, f"{title}: {count} by {count} classes")


def confusion_map(table: Floats, names: Sequence[str]) -> str:
    """Draw which class (columns) is answered how often, in percent, for the samples of each class (rows)."""
    count = len(table)
    cell = min(max(600 / count, 11.0), 34.0)
    label = min(11.5, cell * 0.95)
    room = _tallest(names) * label * 0.58
    left, top, size = max(16 + room, 56.0), 34 + room, cell * count
    out = [text(left, 12, "answer →"), text(left - 8, top - 6, "true ↓", "tick end")]
    out.append(raster(table / 100, left, top, size, size))
    out.append(_gaps(count, count, left, top, (cell, cell)))
    for i, name in enumerate(names):
        y = top + (i + 0.5) * cell + label * 0.35
        out.append(text(left - 8, y, _cut(name), "tick end", label))
        out.append(_upright(name, left + (i + 0.5) * cell + label * 0.35, top - 6, label, "tick"))
    if cell >= 20:
        for i, j in zip(*np.nonzero(np.nan_to_num(table) >= 0.5), strict=True):
            css = "cell strong" if table[i, j] > 72 else "cell"
            x, y = left + (j + 0.5) * cell, top + (i + 0.62) * cell
            out.append(text(x, y, f"{table[i, j]:.0f}", css, cell * 0.36))
    words = f"Confusion among {count} unseen classes, {np.mean(np.diag(table)):.1f} percent on the diagonal"
    return svg(out, left + size + 4, top + size + 4, words, "map")


def _upright(name: str, x: float, y: float, size: float, css: str) -> str:
    return f'<g transform="translate({x:.1f} {y:.1f}) rotate(-90)">{text(0, 0, _cut(name), css, size)}</g>'


def _tallest(names: Sequence[str]) -> int:
    return max((min(len(name), _CUT) for name in names), default=0)


_CUT = 20  # letters of a class name that a figure has room for


def _cut(name: str) -> str:
    return name if len(name) <= _CUT else name[: _CUT - 1] + "…"


def _short(value: float, digits: int = 3) -> str:
    """Write a number with at most so many decimals.

    Example:
        >>> _short(25.0), _short(0.25), _short(98.8333, 1)
        ('25', '0.25', '98.8')
    """
    return f"{value:.{digits}f}".rstrip("0").rstrip(".") if value != round(value) else f"{value:.0f}"
