"""Descriptions of classes in words, to stand beside their names: from a text file, or WordNet's glosses.

"a photo of a beaver." says less than "a photo of a beaver: large semiaquatic rodent with webbed hind feet ...".
WordNet's data files come with Debian and Ubuntu (``wordnet-base``, in ``/usr/share/wordnet``) and from its authors;
only ``index.noun`` and ``data.noun`` are read.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from fedunseen.core.errors import DataError

__all__ = ["glosses_of"]

# WordNet's lexicographer files of what a photograph can show, most wanted first: an animal's name often is a fur's or a
# person's too, and those may come first.
_ANIMAL = "05"
_SHOWN = (_ANIMAL, "06", "08", "13", "17", "18", "19", "20")  # artefacts, bodies, food, objects, people, plants


def glosses_of(names: Sequence[str], source: str | Path) -> list[str | None]:
    r"""Return a description for each name, None where the source has none.

    Args:
        names: of classes, in plain words (:func:`fedunseen.encoders.text.clean_class_name`).
        source: a text file of lines ``name: description`` (or with a tab between them), of which case, ``_`` and ``+``
            in names do not matter; or a folder with WordNet's ``index.noun`` and ``data.noun``. Of a word's meanings
            that is taken which is an animal, else the first that can be seen; of several words that WordNet does not
            know together, the last counts (an aquarium fish is a fish).

    Raises:
        DataError: the source is missing or damaged, or knows none of the names.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        ...     _ = file.write("polar_bear: white bear of Arctic regions\n")
        ...     file.flush()
        ...     glosses_of(["Polar bear", "abacus"], file.name)
        ['white bear of Arctic regions', None]
    """
    path = Path(source).expanduser()
    found = _of_wordnet(names, path) if path.is_dir() else _of_file(names, path)
    unknown = [name for name, gloss in zip(names, found, strict=True) if gloss is None]
    if len(unknown) == len(names):
        raise DataError(f"{path} describes none of the {len(names)} classes (one is {names[0]!r}): mend data.glosses")
    if unknown:
        warnings.warn(
            f"{path} does not describe {len(unknown)} of {len(names)} classes ({', '.join(unknown[:3])}"
            f"{', ...' if len(unknown) > 3 else ''}): their names stand alone",
            stacklevel=2,
        )
    return found


def _key(name: str) -> str:
    return "_".join(name.lower().replace("+", " ").replace("_", " ").split())


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8-sig").splitlines()
    except FileNotFoundError:
        raise DataError(f"{path} is missing: mend data.glosses") from None
    except (OSError, UnicodeDecodeError):
        raise DataError(f"{path} cannot be read as text in UTF-8: mend data.glosses") from None


def _of_file(names: Sequence[str], path: Path) -> list[str | None]:
    known: dict[str, str] = {}
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        name, separator, gloss = line.partition("\t") if "\t" in line else line.partition(":")
        if not (separator and name.strip() and gloss.strip()):
            raise DataError(f"{path}, line {number}: write it as 'name: description'")
        known[_key(name)] = gloss.strip()
    return [known.get(_key(name)) for name in names]


def _of_wordnet(names: Sequence[str], folder: Path) -> list[str | None]:
    lemmas = {key for name in names for key in (_key(name), _key(name).rpartition("_")[2])}
    places: dict[str, list[int]] = {}
    try:
        for line in _lines(folder / "index.noun"):
            lemma, _, rest = line.partition(" ")
            if lemma in lemmas:
                words = rest.split()
                places[lemma] = [int(word) for word in words[-int(words[1]) :]]  # the meanings' places, by frequency
        data = (folder / "data.noun").read_bytes()
        chosen = [places.get(_key(name)) or places.get(_key(name).rpartition("_")[2]) for name in names]
        return [_gloss(data, each) if each else None for each in chosen]
    except OSError:
        raise DataError(f"{folder / 'data.noun'} is missing: mend data.glosses") from None
    except (ValueError, IndexError):
        raise DataError(f"{folder}: index.noun and data.noun are damaged or not WordNet's: mend data.glosses") from None


def _gloss(data: bytes, places: Sequence[int]) -> str:
    """Return the gloss of the meaning that is most likely to be seen, without its examples."""
    lines = [data[place : data.index(b"\n", place)].decode("utf-8") for place in places]
    kinds = [line.split(" ", 2)[1] for line in lines]
    wanted = [i for i, kind in enumerate(kinds) if kind == _ANIMAL]
    wanted += [i for i, kind in enumerate(kinds) if kind in _SHOWN]
    return lines[(wanted or [0])[0]].split(" | ", 1)[1].split('; "')[0].strip()
