"""Primitives of inline SVG. Colors are the page's CSS variables, so both color schemes work.

A plotting library's SVG has fixed colors and shows no values when pointed at; its scripts would
make a page megabytes.
"""

import base64
import hashlib
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Floats = NDArray[np.float64]

_NAME_LENGTH = 20  # letters of a class name that a figure has room for


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

    @property
    def end(self) -> int:
        """The horizontal place where the plot ends."""
        return self.width - self.right

    @property
    def base(self) -> int:
        """The vertical place where the plot ends."""
        return self.height - self.bottom

    def px(self, value: float) -> float:
        """Return the horizontal place of a value."""
        return round(self.left + _share(value, self.x) * (self.end - self.left), 2)

    def py(self, value: float) -> float:
        """Return the vertical place of a value."""
        return round(self.base - _share(value, self.y) * (self.base - self.top), 2)

    def points(self, points: Iterable[Sequence[float]], mark: str) -> str:
        """Return path data that draws ``mark``, relative path data, at each point (x, y)."""
        return "".join(f"M{self.px(a):g} {self.py(b):g}{mark}" for a, b in points)

    def line(self, x: Floats, y: Floats) -> str:
        """Return path data through the points (T,), lifted over those that are NaN."""
        parts = []
        pen = "M"
        for a, b in zip(x.tolist(), y.tolist(), strict=True):
            if not math.isfinite(b):
                pen = "M"
                continue
            parts.append(f"{pen}{self.px(a):g} {self.py(b):g}")
            pen = "L"
        return "".join(parts)

    def area(self, x: Floats, low: Floats, high: Floats) -> str:
        """Return path data of the area between two curves (T,), where both are known."""
        finite = np.isfinite(low) & np.isfinite(high)
        parts = []
        for run in np.split(np.arange(len(x)), np.flatnonzero(np.diff(finite.astype(int))) + 1):
            if not finite[run[0]]:
                continue
            points = [(x[i], high[i]) for i in run] + [(x[i], low[i]) for i in run[::-1]]
            parts.append("M" + "L".join(f"{self.px(a):g} {self.py(b):g}" for a, b in points) + "Z")
        return "".join(parts)

    def axes(self, title: str, x_label: str, x_ticks: Iterable[float], unit: str = "") -> list[str]:
        """Return title, grid, tick labels and axis label."""
        marks = [text(0, 14, title, "title")]
        for tick in ticks(*self.y):
            y = self.py(tick)
            marks.append(path(f"M{self.left} {y:g}H{self.end}", "rule"))
            marks.append(text(self.left - 7, y + 4, rounded(tick) + unit, "tick end"))
        marks += [
            text(self.px(tick), self.base + 16, rounded(tick), "tick mid") for tick in x_ticks
        ]
        marks.append(text((self.left + self.end) / 2, self.height - 4, x_label, "tick mid"))
        return marks


def _share(value: float, limits: tuple[float, float]) -> float:
    low, high = limits
    return (value - low) / (high - low) if high > low else 0.5


def element(tag: str, title: str = "", **attributes: str | float) -> str:
    """Return an SVG element; ``css`` is its class, underscores stand for hyphens, ``title`` is
    shown when pointed at.
    """
    by_name = {
        "class" if name == "css" else name.replace("_", "-"): value
        for name, value in attributes.items()
    }
    texts = {
        name: v if isinstance(v, str) else f"{round(float(v), 2):g}" for name, v in by_name.items()
    }
    written = "".join(f' {name}="{value}"' for name, value in texts.items())
    return (
        f"<{tag}{written}><title>{escape(title)}</title></{tag}>" if title else f"<{tag}{written}/>"
    )


def path(d: str, css: str, title: str = "", **attributes: str | float) -> str:
    """Return a path of a look."""
    return element("path", title, css=css, **attributes, d=d)


def rect(
    x: float, y: float, width: float, height: float, title: str = "", **attributes: str | float
) -> str:
    """Return a rectangle."""
    return element("rect", title, **attributes, x=x, y=y, width=width, height=height)


def circle(
    x: float, y: float, r: float, color: str, title: str = "", **attributes: str | float
) -> str:
    """Return a circle filled with a color of the page."""
    css = {"css": attributes.pop("css")} if "css" in attributes else {}
    return element("circle", title, **css, cx=x, cy=y, r=r, fill=f"var(--{color})", **attributes)


def svg(marks: Iterable[str], width: float, height: float, label: str, css: str = "") -> str:
    """Wrap marks into one SVG that scales with the page and that a screen reader announces as
    ``label``.
    """
    return (
        f'<svg class="figure {css}" style="--natural:{width:.0f}px" viewBox="0 0 {width:.1f} '
        f'{height:.1f}" role="img" aria-label="{escape(label)}">' + "".join(marks) + "</svg>"
    )


def text(x: float, y: float, words: str, css: str = "tick", size: float | None = None) -> str:
    """Return words at a place; ``css`` is their look, ``size`` their height if it is not the usual
    one.
    """
    style = f' style="font-size:{size:.1f}px"' if size is not None else ""
    return f'<text class="{css.strip()}"{style} x="{round(x, 1):g}" y="{round(y, 1):g}">{escape(words)}</text>'


def rotated(name: str, x: float, y: float, css: str, size: float | None = None) -> str:
    """Return a name at a place, read from the bottom up."""
    return f'<g transform="translate({x:.1f} {y:.1f}) rotate(-90)">{text(0, 0, shortened(name), css, size)}</g>'


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Return round numbers within [low, high], about as many as asked for."""
    if high <= low:
        return [float(low)]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = min((power * m for m in (1, 2, 2.5, 5, 10)), key=lambda s: abs(math.log(s / rough)))
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def raster(values: Floats, x: float, y: float, width: float, height: float) -> str:
    """Draw a matrix in [-1, 1] as colored cells: blue above 0, orange below, hatched gray where
    NaN.
    """
    box = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    finite = np.nan_to_num(values)
    parts = {
        "blue": np.clip(finite, 0, 1),
        "orange": np.clip(-finite, 0, 1),
        "unknown": np.isnan(values).astype(float),
    }
    marks = [masked(box, part, f"var(--{color})") for color, part in parts.items() if part.any()]
    return f'<rect class="cells" {box}/>' + "".join(marks)


def gaps(rows: int, columns: int, x: float, y: float, cell: tuple[float, float]) -> str:
    """Return lines in the page's color between cells that are wide enough to see."""
    across, down = cell
    lines = ""
    if across >= 5:
        lines += "".join(
            f"M{x + i * across:.2f} {y:g}v{rows * down:.2f}" for i in range(1, columns)
        )
    if down >= 5:
        lines += "".join(
            f"M{x:g} {y + i * down:.2f}h{columns * across:.2f}" for i in range(1, rows)
        )
    return path(lines, "gap") if lines else ""


def masked(box: str, pixels: Floats, fill: str, css: str = "") -> str:
    """Fill a box where pixels (h, w) in [0, 1] let the color through."""
    source = image_source(pixels)
    name = "m" + hashlib.blake2b((box + source).encode(), digest_size=6).hexdigest()
    return (
        f'<mask id="{name}" maskUnits="userSpaceOnUse" {box}><image {box} '
        f'preserveAspectRatio="none" href="{source}"/></mask><rect {css}{box} fill="{fill}" '
        f'mask="url(#{name})"/>'
    )


def image_source(pixels: NDArray[np.floating]) -> str:
    """Return a ``data:`` address holding pixels in [0, 1], (h, w) gray or (h, w, 3) color, as
    PNG.
    """
    return picture_address(Image.fromarray(np.round(np.clip(pixels, 0, 1) * 255).astype(np.uint8)))


def picture_address(picture: Image.Image) -> str:
    """Return a ``data:`` address holding a picture as PNG."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def to_rows(image: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return an image (channels, height, width) as :func:`image_source` takes it."""
    return image[0] if len(image) == 1 else np.moveaxis(image[:3], 0, -1)


def longest_name(names: Iterable[str]) -> int:
    """Return the length of the longest name as figures show it."""
    return max((min(len(name), _NAME_LENGTH) for name in names), default=0)


def shortened(name: str) -> str:
    """Return a name as figures show it: at most 20 letters."""
    return name if len(name) <= _NAME_LENGTH else name[: _NAME_LENGTH - 1] + "…"


def rounded(value: float, digits: int = 3) -> str:
    """Return a number with at most so many decimals."""
    return (
        f"{value:.{digits}f}".rstrip("0").rstrip(".") if value != round(value) else f"{value:.0f}"
    )
