"""Reads an adapter's file, without importing it: which arguments its function takes."""

import ast
import json
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

QKV = ("q", "k", "v")
OPTIONS = ("is_causal", "window_size", "sink_size", "scale", "sink_logits")
WANTED = "(q, k, v, *, is_causal, window_size=None, sink_size=0, scale=None, sink_logits=None)"
OTHERS = {"causal": "is_causal", "sliding_window": "window_size", "softmax_scale": "scale",
          "sm_scale": "scale", "scaling": "scale", "s_aux": "sink_logits", "sinks": "sink_logits"}
CORNERS = ("top-left", "bottom-right")


class BadUsage(Exception):
    """Bad input; the message reads want ...; got ..."""


@dataclass(frozen=True)
class Adapter:
    """claims: those of OPTIONS that its function takes.  align: which corner of the scores its
    causal mask starts from, where there are not as many queries as keys; "" if it does not say.
    lse_has_gradient: False if the file says that its lse passes on none.
    has_kernels: whether the file itself imports Triton, whose kernels want to see a GPU."""

    path: Path
    entry: str
    source: bytes
    claims: tuple[str, ...]
    align: str = ""
    has_kernels: bool = False
    lse_has_gradient: bool = True


def read(text: str) -> Adapter:
    """Read FILE.py or FILE.py:function, as it is on the command line.

    Raises:
        BadUsage: there is no such file or function, or it is no adapter.
    """
    name, _, entry = text.rpartition(":") if ".py:" in text else (text, "", "attention")
    path = Path(name)
    if not path.is_file():
        raise BadUsage(f"want a file that exists, FILE.py or FILE.py:function; got {text}")
    source = path.read_bytes()
    try:
        tree = ast.parse(source, path.name)
    except (SyntaxError, ValueError) as error:
        raise BadUsage(f"want a Python file; got {error}") from None
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if entry not in functions:
        others = ", ".join(functions) or "no function"
        raise BadUsage(f"want a function {entry} in {path}; got {others}")
    return Adapter(path, entry, source, _claims(functions[entry]),
                   _said(tree, "align", CORNERS, ""),
                   re.search(rb"(?m)^\s*(import|from) triton\b", source) is not None,
                   _said(tree, "lse_has_gradient", (True, False), True))


def _claims(function: ast.FunctionDef) -> tuple[str, ...]:
    """The options that a function takes; with **kwargs all of them."""
    given = function.args
    placed = [arg.arg for arg in (*given.posonlyargs, *given.args)]
    bare = placed[len(given.posonlyargs):len(placed) - len(given.defaults)]
    named = {*placed, *(arg.arg for arg in given.kwonlyargs)}
    if wrong := [name for name in OTHERS if name in named and OTHERS[name] not in named]:
        raise BadUsage(f"want the argument {OTHERS[wrong[0]]}; got {wrong[0]} in "
                       f"{function.name}({ast.unparse(given)})")
    bare += [arg.arg for arg, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
             if default is None]
    left = [name for name in bare if name not in (*QKV, "is_causal")]
    if tuple(placed[:3]) != QKV or left:
        raise BadUsage(f"want {function.name}{WANTED}, or less of it; got "
                         f"{function.name}({ast.unparse(given)})")
    return tuple(name for name in OPTIONS if given.kwarg or name in named)


def _said(tree: ast.Module, name: str, allowed: tuple, default):
    """What the file assigns to a name, one of those that are allowed."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets):
            said = node.value.value if isinstance(node.value, ast.Constant) else None
            if said not in allowed:
                wanted = " or ".join(f'"{one}"' if one in CORNERS else str(one) for one in allowed)
                raise BadUsage(f"want {name} = {wanted}; got {ast.unparse(node)}")
            return said
    return default


def editable_folders() -> tuple[Path, ...]:
    """The folders of packages that `pip install -e` left where they are: an adapter may import
    them."""
    said = [package.read_text("direct_url.json") for package in metadata.distributions()]
    found = [json.loads(text) for text in said if text]
    return tuple(Path(url2pathname(urlparse(one["url"]).path)) for one in found
                 if one.get("dir_info", {}).get("editable"))
