"""Formats of pictures that Pillow reads with a further package alone: how their files begin, and
what to install.

A format is added here and in a module that registers its reader with Pillow.
"""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

# bytes 4 to 11 of a photo as telephones save it
_HEIC = frozenset(
    b"ftyp" + brand
    for brand in (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
)


@dataclass(frozen=True)
class FurtherFormat:
    """A format that a package brings.

    Attributes:
        name: Pillow's.
        package: is imported for it.
        missing: what a file is without the package, and what helps.
        place: byte at which a mark of the format begins.
        end: the byte after it.
        marks: what stands there.
        alone: no other reader is asked, though a file may begin as one of another format.
        opener: place of the function that lets Pillow read it.
    """

    name: str
    package: str
    missing: str
    place: int
    end: int
    marks: frozenset[bytes]
    opener: str
    alone: bool = False

    @property
    def installed(self) -> bool:
        """Whether its package is there."""
        return find_spec(self.package) is not None

    def register(self) -> None:
        """Let Pillow read it."""
        module, _, function = self.opener.partition(":")
        getattr(import_module(module), function)()


FURTHER = (
    FurtherFormat(
        "HEIF",
        "pillow_heif",
        "is a HEIC photo, which needs a package: pip install pillow-heif",
        4,
        12,
        _HEIC,
        "pillow_heif:register_heif_opener",
    ),
    FurtherFormat(
        "DICOM",
        "pydicom",
        "is a DICOM file, which needs a package: pip install 'fedunseen[medical]'",
        128,
        132,
        frozenset({b"DICM"}),
        "fedunseen.data.io.dicom.image:register",
        alone=True,
    ),
)


def installed_packages() -> list[str]:
    """Return the packages that are there: with them, more files can be read."""
    return [kind.package for kind in FURTHER if kind.installed]
