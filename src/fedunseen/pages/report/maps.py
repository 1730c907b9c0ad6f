"""Maps: matrices of classes, clients and attributes as colored cells, and samples in the plane."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedunseen.pages.report import svg as draw
from fedunseen.pages.report.svg import Floats, Frame, path, rect, shortened, svg, text

Ids = NDArray[np.int64]

_CLASSES = 7  # that have colors of their own on the page of few-shot runs
# place and width of maps with a row for each client
_LEFT = 74
_WIDE = 700
_RING = "m-2.6 0a2.6 2.6 0 1 0 5.2 0a2.6 2.6 0 1 0-5.2 0"
_CROSS = "m-3-3l6 6m0-6l-6 6"


def hue(place: int) -> int:
    """Return the hue of the class at a place of a list, in degrees."""
    return round(place * 137.508 % 360)


def class_color(place: int) -> str:
    """Return the color of the class at a place of a list: one that the color-blind tell apart,
    while there are any.
    """
    return f"var(--class-{place})" if place < _CLASSES else f"hsl({hue(place)} 62% var(--dots))"


def spread(places: Floats, widths: Floats, height: float) -> Floats:
    """Move labels apart until no two overlap, each as little as it takes; those that stand free
    stay.
    """
    at = np.array(places, dtype=np.float64)
    order = np.arange(len(at))
    later = np.where(order[None, :] > order[:, None], 1.0, -1.0)[..., None]
    room = np.stack(
        [(widths[:, None] + widths[None, :]) / 2, np.full((len(at), len(at)), height)], axis=-1
    )
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


def _flat_plane(points: Floats, title: str, width: int = 420) -> tuple[Floats, Frame, list[str]]:
    """Return points (n, 2), whose distances alone matter, turned to lie flat; their frame; and what
    is below them.
    """
    centered = points - points.mean(axis=0)
    points = centered @ np.linalg.svd(centered, full_matrices=False)[2].T
    low = points.min(axis=0)
    high = points.max(axis=0)
    middle = (low + high) / 2
    half = np.maximum((high - low) / 2, 1e-9)
    half = np.array([half[0], max(half[1], half[0] * 0.4)]) * 1.08
    tall = round((width - 8) * float(half[1] / half[0]))
    frame = Frame(
        (middle[0] - half[0], middle[0] + half[0]), (middle[1] - half[1], middle[1] + half[1]),
        width=width, height=tall + 34, left=4, right=4, top=28, bottom=6,
    )  # fmt: skip
    return (
        points,
        frame,
        [text(0, 14, title, "title"), rect(frame.left, frame.top, width - 8, tall, css="cells")],
    )


def _class_names(
    frame: Frame, means: Sequence[Floats], names: Sequence[str], size: float
) -> list[str]:
    """Write names at the means (2,) of their points, moved apart where they would hide each
    other.
    """
    short = [shortened(name) for name in names]
    places = np.array([[frame.px(float(x)), frame.py(float(y))] for x, y in means])
    if len(short) <= 80:  # more have no room side by side, however they stand
        places = spread(places, np.array([0.6 * size * len(name) + 3 for name in short]), size)
    return [
        text(x, y + size * 0.35, name, "where", size)
        for (x, y), name in zip(places.tolist(), short, strict=True)
    ]


def class_map(
    points: Floats,
    labels: Ids,
    names: Sequence[str],
    title: str,
    generated: NDArray[np.bool_] | None = None,
) -> str:
    """Draw samples in the plane, colored by class, each class named at its mean.

    Where some are ``generated``, they are circles and real ones crosses (FZSL, Fig. 5), at whose
    mean the name stands.
    """
    real = np.ones(len(labels), dtype=bool) if generated is None else ~generated
    kinds = (
        [("dots", real, "h0")]
        if generated is None
        else [("generated", ~real, _RING), ("real", real, _CROSS)]
    )
    points, frame, marks = _flat_plane(points, title, 420 if generated is None else 760)
    classes = np.unique(labels).tolist()
    means = []
    for place, c in enumerate(classes):
        members = labels == c
        for kind, of_kind, mark in kinds:
            if (chosen := members & of_kind).any():
                said = names[c] if generated is None else f"{names[c]}, {kind}"
                dots = frame.points(points[chosen].tolist(), mark)
                marks.append(path(dots, kind, said, style=f"--hue:{hue(place)}"))
        means.append(points[members & real if (members & real).any() else members].mean(axis=0))
    size = 10.0 if len(classes) > 30 else 12.0 if generated is None else 13.0
    marks += _class_names(frame, means, [names[c] for c in classes], size)
    count = (
        f"{len(points)}"
        if generated is None
        else f"{(~real).sum()} generated and {real.sum()} real"
    )
    label = f"{title}: {count} samples of {len(classes)} classes"
    return svg(marks, frame.width, frame.height, label, "" if generated is None else "map")


def plane_map(
    points: Floats,
    labels: Ids,
    grid: Ids,
    corners: tuple[Sequence[float], Sequence[float]],
    names: Sequence[str],
    label: str,
) -> str:
    """Draw samples in the plane of two features over the classifier's answers there (FedFSL, Fig.
    6).
    """
    (x0, y0), (x1, y1) = corners
    half = [
        max(high - low, 1e-12) / max(len(grid) - 1, 1) / 2 for low, high in ((x0, x1), (y0, y1))
    ]
    frame = Frame(
        (x0 - half[0], x1 + half[0]), (y0 - half[1], y1 + half[1]),
        width=300, height=300, left=0, right=0, top=0, bottom=0,
    )  # fmt: skip
    marks = [rect(0, 0, 300, 300, css="cells")]
    box = 'x="0" y="0" width="300" height="300"'
    for k in np.unique(grid).tolist():
        marks.append(
            draw.masked(
                box, (grid[::-1] == k).astype(np.float64), class_color(k), 'class="region" '
            )
        )
    present = np.unique(labels).tolist()
    for k in present:
        dots = "".join(
            f"M{frame.px(a):.1f} {frame.py(b):.1f}h0" for a, b in points[labels == k].tolist()
        )
        marks.append(path(dots, "samples", names[k], style=f"stroke:{class_color(k)}"))
    marks += _class_names(
        frame,
        [points[labels == k].mean(axis=0) for k in present],
        [names[k] for k in present],
        14.0,
    )
    return svg(marks, frame.width, frame.height, label)


def small_map(values: Floats, title: str, words: str) -> str:
    """Draw a matrix (m, m) in [-1, 1] small, to stand in a row with others, with ``words`` below
    it.
    """
    marks = [text(0, 12, title, "title"), draw.raster(values, 0, 20, 180, 180), text(0, 215, words)]
    return svg(marks, 180, 222, f"{title}, {words}: {len(values)} by {len(values)} classes")


def confusion_map(
    table: Floats, names: Sequence[str], unseen: NDArray[np.bool_] | None = None
) -> str:
    """Draw which class (columns) is answered how often, in percent, for the samples of each class
    (rows).

    ``unseen`` (m,) bool: classes whose names are orange, where some are seen.
    """
    count = len(table)
    cell = min(max(600 / count, 11.0), 34.0)
    label = min(11.5, cell * 0.95)
    room = draw.longest_name(names) * label * 0.58
    left = max(16 + room, 56.0)
    top = 34 + room
    size = cell * count
    marks = [text(left, 12, "answer →"), text(left - 8, top - 6, "true ↓", "tick end")]
    marks.append(draw.raster(table / 100, left, top, size, size))
    marks.append(draw.gaps(count, count, left, top, (cell, cell)))
    for i, name in enumerate(names):
        middle = (i + 0.5) * cell + label * 0.35
        css = "tick none" if unseen is not None and unseen[i] else "tick"
        marks.append(text(left - 8, top + middle, shortened(name), f"{css} end", label))
        marks.append(draw.rotated(name, left + middle, top - 6, css, label))
    if cell >= 20:
        for i, j in zip(*np.nonzero(np.nan_to_num(table) >= 0.5), strict=True):
            css = "cell strong" if table[i, j] > 72 else "cell"
            x = left + (j + 0.5) * cell
            y = top + (i + 0.62) * cell
            marks.append(text(x, y, f"{table[i, j]:.0f}", css, cell * 0.36))
    kind = "unseen classes" if unseen is None else "classes, seen and unseen"
    words = f"Confusion among {count} {kind}, {np.mean(np.diag(table)):.1f} percent on the diagonal"
    return svg(marks, left + size + 4, top + size + 4, words, "map")


def _client_grid(
    values: Floats, names: Sequence[str], css: Sequence[str], clients: Sequence[str], above: float
) -> tuple[list[str], tuple[float, float], float]:
    """Draw a matrix (clients, columns) in [-1, 1] with names at both sides where there is room."""
    rows, columns = values.shape
    across = _WIDE / columns
    down = min(max(380 / rows, 2.5), 22)
    label = min(11.0, across * 0.98)
    shows_names = label >= 6.5 and len(names) > 0
    top = above + (draw.longest_name(names) * label * 0.6 if shows_names else 0)
    marks = [
        draw.raster(values, _LEFT, top, _WIDE, rows * down),
        draw.gaps(rows, columns, _LEFT, top, (across, down)),
    ]
    for i in range(0, rows, max(1, math.ceil(12 / down))):
        marks.append(text(_LEFT - 8, top + (i + 0.5) * down + 4, clients[i], "tick end"))
    for j, name in enumerate(names if shows_names else ()):
        marks.append(draw.rotated(name, _LEFT + (j + 0.7) * across, top - 5, css[j], label))
    return marks, (across, down), top


def holdings_map(
    counts: Ids,
    names: Sequence[str],
    held: int,
    idle: int,
    clients: Sequence[str],
    idle_words: str = "not trained on",
) -> str:
    """Draw how much of each class each client holds."""
    rows, columns = counts.shape
    css = ["tick" if j < held else "tick none" for j in range(columns)]
    marks, (across, down), top = _client_grid(
        np.sqrt(counts / max(counts.max(), 1)), names, css, clients, 30
    )
    right = _LEFT + _WIDE
    below = top + rows * down
    label_step = max(1, math.ceil(12 / down))
    totals = counts.sum(axis=1)
    classes = (counts > 0).sum(axis=1)
    largest = max(int(totals.max()), 1)
    for i in range(rows):
        y = top + (i + 0.5) * down
        words = f"{clients[i]}: {classes[i]} classes, {totals[i]} samples"
        marks.append(
            rect(right + 12, y - down * 0.3, 44 * totals[i] / largest, down * 0.6, words, css="bar")
        )
        if i % label_step == 0:
            marks.append(text(right + 62, y + 4, f"{totals[i]:,}"))
    marks.append(text(right + 12, top - 8, "samples"))
    not_held = columns - held - idle
    start = 0
    for words, number, look, drop in (
        (f"{held} classes held by someone", held, "held", 25),
        (f"{idle} {idle_words}", idle, "none end", 41),
        (f"{not_held} unseen: no one holds them", not_held, "none end", 25),
    ):
        x = _LEFT + start * across
        w = number * across
        start += number
        if not number:
            continue
        if look != "held":
            marks.append(rect(x, top, w, rows * down, css="not-held"))
        marks.append(_bracket(x, below, w, look))
        marks.append(text(x + w if "end" in look else x, below + drop, words, f"tick {look}"))
    words = f"{rows} clients and {columns} classes: {held} are held by someone, {columns - held} by no one"
    return svg(marks, right + 106, below + (48 if idle else 32), words, "map")


def _bracket(x: float, y: float, width: float, css: str, title: str = "") -> str:
    """Return a bracket below columns."""
    return path(f"M{x + 1:.2f} {y + 5:.2f}v5h{max(width - 2, 0):.2f}v-5", f"bracket {css}", title)


def coverage_map(
    cover: Floats, names: Sequence[str], groups: Sequence[tuple[str, int]], clients: Sequence[str]
) -> str:
    """Draw how much of each attribute each client covers (FZSL, Fig. 3 b)."""
    rows, columns = cover.shape
    scaled = cover / max(float(np.abs(cover).max(initial=0.0)), 1e-12)
    marks, (across, down), top = _client_grid(scaled, names, ["tick"] * columns, clients, 12)
    below = top + rows * down
    start = 0
    upright: list[str] = []  # names that are too wide to lie
    for name, number in ((name or "no group", number) for name, number in groups):
        x = _LEFT + start * across
        w = number * across
        start += number
        marks.append(_bracket(x, below, w, "held", f"{name}: {number}"))
        if 6.6 * len(name) <= w:
            marks.append(text(x + w / 2, below + 25, name, "tick mid"))
        elif rows and w >= 13:
            marks.append(draw.rotated(name, x + w / 2 + 4, below + 16, "tick end"))
            upright.append(name)
    room = 16 + max(32 if groups else 8, draw.longest_name(upright) * 6.4 + 8 if upright else 0)
    words = f"{rows} clients and {columns} attributes" + (
        f" in {len(groups)} groups" if groups else ""
    )
    return svg(marks, _LEFT + _WIDE + 106, below + room - 8, words, "map")
