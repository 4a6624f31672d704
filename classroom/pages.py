"""Renders the templates beside this file to pages that need no server or network; makes zips."""

import io
import zipfile
from collections.abc import Collection
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

DATE = (1980, 1, 1, 0, 0, 0)  # for all files in a zip, so that equal contents give equal zips
_environment = Environment(loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True,
                           lstrip_blocks=True, autoescape=lambda name: name.endswith(".html"))


def rendered(template: str, **values) -> bytes:
    """Render a template; in an .html, values are escaped."""
    return _environment.get_template(template).render(**values).encode()


def zipped(files: dict[str, bytes], programs: Collection[str] = ()) -> bytes:
    """A zip of these files.  programs: the names of executable ones."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, contents in sorted(files.items()):
            entry = zipfile.ZipInfo(name, DATE)
            entry.external_attr = (0o755 if name in programs else 0o644) << 16
            archive.writestr(entry, contents, zipfile.ZIP_DEFLATED)
    return out.getvalue()
