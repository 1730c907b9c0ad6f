"""The attribute groups of the published benchmarks, for losses that treat what belongs together as one.

CUB's are the prefixes of its attributes' names (28). AWA's nine and SUN's four are those of APN (Xu et al.,
"Attribute Prototype Network for Zero-Shot Learning", 2020), as GEM and SVIP use them too. aPY and DeepFashion: no one
has published any for aPY; DeepFashion's own attribute types serve.
"""

from __future__ import annotations

Groups = dict[str, tuple[int, ...]]

CUB_STARTS = {
    "bill shape": 0, "wing color": 9, "upperparts color": 24, "underparts color": 39, "breast pattern": 54,
    "back color": 58, "tail shape": 73, "upper tail color": 79, "head pattern": 94, "breast color": 105,
    "throat color": 120, "eye color": 135, "bill length": 149, "forehead color": 152, "under tail color": 167,
    "nape color": 182, "belly color": 197, "wing shape": 212, "size": 217, "shape": 222, "back pattern": 236,
    "tail pattern": 240, "belly pattern": 244, "primary color": 248, "leg color": 263, "bill color": 278,
    "crown color": 293, "wing pattern": 308,
}  # fmt: skip
CUB_ATTRIBUTES = 312

AWA_RANGES = {
    "colour": [(0, 7)], "texture": [(8, 13)], "shape": [(14, 17)], "body parts": [(18, 33), (44, 45)],
    "behaviour": [(34, 43)], "nutrition": [(46, 50)], "activity": [(51, 62)], "habitat": [(63, 77)],
    "character": [(78, 84)],
}  # fmt: skip
SUN_RANGES = {
    "functions": [(0, 35)], "materials": [(36, 73), (80, 80), (99, 99)], "surface": [(74, 79), (81, 84)],
    "spatial envelope": [(85, 98), (100, 101)],
}  # fmt: skip


def builtin_groups(dataset: str, attributes: int) -> Groups:
    """Return the groups of a published data set, each attribute in exactly one.

    Example:
        >>> builtin_groups("AWA2", 85)["body parts"][-3:]
        (33, 44, 45)
        >>> len(builtin_groups("CUB", 312)), builtin_groups("APY", 64)
        (28, {})
    """
    name = dataset.upper()
    if name == "CUB" and attributes == CUB_ATTRIBUTES:
        starts = [*CUB_STARTS.values(), CUB_ATTRIBUTES]
        return {group: tuple(range(starts[i], starts[i + 1])) for i, group in enumerate(CUB_STARTS)}
    if name in ("AWA", "AWA1", "AWA2", "AWA1_LAMPERT") and attributes == 85:
        return _columns(AWA_RANGES)
    if name == "SUN" and attributes == 102:
        return _columns(SUN_RANGES)
    return {}


def _columns(ranges: dict[str, list[tuple[int, int]]]) -> Groups:
    return {group: tuple(i for a, b in parts for i in range(a, b + 1)) for group, parts in ranges.items()}
