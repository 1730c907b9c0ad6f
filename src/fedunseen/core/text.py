"""Texts for people: names from outside are shown as they are, without what steers a terminal or
turns the line.
"""

import html
import math
import re
from typing import TypeVar

_Text = TypeVar("_Text", bound=str)

# Control characters but tab and line end, separators of lines, and marks of the direction of
# writing.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def shown(text: _Text) -> _Text:
    r"""Return a text with a replacement character for each that would steer its display.

    Example:
        >>> shown("a\x1b[2J") == "a\N{REPLACEMENT CHARACTER}[2J"
        True
    """
    if not _STEERING.search(text):
        return text
    return type(text)(_STEERING.sub("\N{REPLACEMENT CHARACTER}", text))


def printable(text: object, most: int = 1000) -> str:
    r"""Return a received text for a message, without line ends and control characters.

    Example:
        >>> printable("a\x1b[2J\nb", 6)
        'a?[2J?'
    """
    return "".join(c if c.isprintable() else "?" for c in str(text)[:most])


def inert(text: str) -> str:
    r"""Return text on one line in which a page that shows Markdown finds no tag, no link and no
    code.

    Example:
        >>> print(inert("<b> [a](b)"))
        &lt;b&gt; \[a\](b)
    """
    on_one_line = " ".join(html.escape(shown(text), quote=False).split())
    return re.sub(r"([\\`\[\]])", r"\\\1", on_one_line)


def shown_value(value: object) -> object:
    """Return what a template puts into its text: :func:`shown` of a text, anything else as it
    is.
    """
    return shown(value) if isinstance(value, str) else value


def whole(number: int) -> str:
    """Return a whole number of any length in a few digits.

    Example:
        >>> whole(12345), whole(2**70_000)
        ('12,345', 'over 10^21072')
    """
    # Python writes no number of over 4,300 digits
    return f"{number:,}" if number < 10**15 else f"over 10^{math.floor(math.log10(number))}"


def rough(number: float) -> str:
    """Return a number with two significant digits.

    Example:
        >>> rough(3547.0), rough(-0.0123), rough(2e7)
        ('3,500', '-0.012', '20,000,000')
    """
    kept = float(f"{number:.2g}")
    return f"{kept:,.0f}" if abs(kept) >= 100 else f"{kept:g}"


def decoded(name: str) -> str:
    r"""Return a name from the file system or the command line as text.

    Bytes that are not UTF-8 stand in it as lone surrogates: they come from a system that writes
    Latin-1.

    Example:
        >>> decoded("B\udce4r") == decoded("B\xe4r") == "B\xe4r"
        True
    """
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return name.encode("utf-8", "surrogateescape").decode("latin-1")
    return name


def percent(probability: float) -> str:
    """Return a probability in percent; never all or nothing, which no sample can show.

    Example:
        >>> percent(0.9996), percent(0.5), percent(0.0)
        ('>99.9 %', '50.0 %', '<0.1 %')
    """
    if probability > 0.9995:
        return ">99.9 %"
    return "<0.1 %" if probability < 0.0005 else f"{100 * probability:.1f} %"
