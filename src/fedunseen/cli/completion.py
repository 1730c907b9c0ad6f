"""What a shell completes after ``fedunseen``: presets, sweeps and keys of settings, without any library of models."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from textwrap import shorten

__all__ = ["presets", "settings", "speak_to_shells", "sweeps"]

_WORDS = 60  # characters that explain a name: a longer line is broken in two, and shells take the rest for a name

# Typer's scripts, but for four faults that only show in the shells themselves:
# - zsh runs its script as a function at the first Tab, and that only defined another one: the first Tab did nothing.
# - zsh evaluated the answer as code, and lost apostrophes ("an experiments samples") in doing so.
# - bash and zsh put a space behind `strategy.rounds=`, where the value follows.
# - fish asked twice at each Tab, and each question starts Python.
# zsh and fish ask for the same answer: a name a line, behind a tab what explains it. Without any, they complete files.
_ASK = "env %(autocomplete_var)s=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args _TYPER_COMPLETE_ARGS="
_BASH = """
%(complete_func)s() {
    local IFS=$'\\n'
    COMPREPLY=( $( env COMP_WORDS="${COMP_WORDS[*]}" \\
                   COMP_CWORD=$COMP_CWORD \\
                   %(autocomplete_var)s=complete_bash $1 ) )
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]]; then compopt -o nospace; fi
    return 0
}

complete -o default -F %(complete_func)s %(prog_name)s
"""
_ZSH = (
    """
#compdef %(prog_name)s

%(complete_func)s() {
  local line
  local -a names keys
  for line in ${(f)"$("""
    + _ASK
    + """"${words[1,$CURRENT]}" %(prog_name)s)"}; do
    if [[ $line == *= ]]; then
      keys+=($line)
    elif [[ $line == *$'\\t'* ]]; then
      names+=("${${line%%%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}")
    else
      names+=("${line//:/\\\\:}")
    fi
  done
  if (( ! $#names && ! $#keys )); then
    _files
    return
  fi
  (( ! $#keys )) || compadd -S '' -a keys
  (( ! $#names )) || _describe '' names
}

if [[ $funcstack[1] == _%(prog_name)s ]]; then
  %(complete_func)s "$@"
else
  compdef %(complete_func)s %(prog_name)s
fi
"""
)
_FISH = (
    """
function %(complete_func)s
    set -l found ("""
    + _ASK
    + """(commandline -cp) %(prog_name)s)
    if string length -q -- $found
        printf '%%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end

complete --command %(prog_name)s --no-files --arguments "(%(complete_func)s)"
"""
)


def speak_to_shells() -> None:
    """Let ``--install-completion`` and ``--show-completion`` give the scripts of this file in place of Typer's."""
    from typer import _completion_classes, _completion_shared

    _completion_shared._completion_scripts.update({"bash": _BASH, "zsh": _ZSH, "fish": _FISH})
    _completion_classes.BashComplete.source_template = _BASH
    _completion_classes.ZshComplete.source_template = _ZSH
    _completion_classes.FishComplete.source_template = _FISH


def _texts(folder: str) -> dict[str, str]:
    """Return a folder's experiment files by name; read as files, because a shell waits for the answer."""
    found = files("fedunseen").joinpath(folder).iterdir()
    return {one.name.removesuffix(".toml"): one.read_text("utf-8") for one in found if one.name.endswith(".toml")}


def _named(folder: str, incomplete: str) -> list[tuple[str, str]]:
    return sorted(
        (name, shorten(text.splitlines()[0].lstrip("# "), _WORDS, placeholder=" ..."))
        for name, text in _texts(folder).items()
        if name.startswith(incomplete)
    )


def presets(incomplete: str) -> list[tuple[str, str]]:
    """Return the presets whose names begin so, and what they are; where there are none, shells complete files."""
    return _named("experiment/presets", incomplete)


def sweeps(incomplete: str) -> list[tuple[str, str]]:
    """Return the shipped sweeps whose names begin so, and what they are."""
    return _named("sweeps", incomplete)


def settings(incomplete: str) -> list[str]:
    """Return the keys that presets set and that begin so; ``fedunseen settings`` lists all."""
    found = set()
    for text in _texts("experiment/presets").values():
        for section, content in tomllib.loads(text).items():
            if isinstance(content, dict):
                found |= {f"{section}.{key}=" for key in content}
    return sorted(key for key in found if key.startswith(incomplete))
