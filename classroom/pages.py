"""Pages out of the templates beside this file, which need no server and no network; and zips."""

import io
import zipfile
from collections.abc import Collection
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

DATE = (1980, 1, 1, 0, 0, 0)  # of all in a zip: it changes only if something in it does
_environment = Environment(loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True,
                           lstrip_blocks=True, autoescape=lambda name: name.endswith(".html"))


def rendered(template: str, **values) -> bytes:
    """In an .html what values say is text, whatever it is."""
    return _environment.get_template(template).render(**values).encode()


def zipped(files: dict[str, bytes], programs: Collection[str] = ()) -> bytes:
    """programs: names of files that may be run."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, contents in sorted(files.items()):
            entry = zipfile.ZipInfo(name, DATE)
            entry.external_attr = (0o755 if name in programs else 0o644) << 16
            archive.writestr(entry, contents, zipfile.ZIP_DEFLATED)
    return out.getvalue()
