"""The keys of a choice's settings, read from its source: importing it would load PyTorch, which takes seconds."""

import ast
import functools
from importlib.util import find_spec
from pathlib import Path

from fedunseen.core.registry import own


def own_keys(section: str, name: str) -> list[str] | None:
    """Return the settings' keys of one of this package's choices without loading it; None for another's."""
    if (place := own(section).get(name)) is None:
        return None
    module, _, attribute = place.partition(":")
    return list(dict.fromkeys(_fields(*_settings(module, attribute))))


@functools.cache
def _parsed(module: str) -> tuple[dict[str, ast.ClassDef], dict[str, tuple[str, str]]]:
    """Return a module's classes by name, and where the names that it imports come from."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text("utf-8"))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    imported = {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return classes, imported


def _class(module: str, name: str) -> tuple[str, ast.ClassDef | None]:
    """Return the class that a name means in a module, and the module that defines it; no class if it is not ours."""
    classes, imported = _parsed(module)
    if name in classes:
        return module, classes[name]
    source, original = imported.get(name, ("", ""))
    return _class(source, original) if source.startswith("fedunseen.") else (source, None)


def _settings(module: str, name: str) -> tuple[str, ast.ClassDef | None]:
    """Return the class that a choice's ``Settings`` are: its own attribute or inner class, or its base's."""
    home, found = _class(module, name)
    for node in found.body if found is not None else ():
        match node:
            case ast.ClassDef("Settings"):
                return home, node
            case ast.Assign([ast.Name("Settings")], value) | ast.AnnAssign(ast.Name("Settings"), _, value):
                match value:
                    case ast.Name(kind) | ast.Call(ast.Attribute(ast.Name(kind), "named")):
                        return _class(home, kind)
    for base in found.bases if found is not None else ():
        if isinstance(base, ast.Name):
            place, inner = _settings(home, base.id)
            if inner is not None:
                return place, inner
    return home, None


def _fields(module: str, found: ast.ClassDef | None) -> list[str]:
    """Return the names of a class's annotated fields, those of its bases first."""
    if found is None:
        return []
    own = [
        node.target.id
        for node in found.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and "ClassVar" not in ast.dump(node.annotation)
    ]
    named = [base.id for base in reversed(found.bases) if isinstance(base, ast.Name)]  # as pydantic orders them
    bases = [key for name in named for key in _fields(*_class(module, name))]
    return bases + own
