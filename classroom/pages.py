"""The templates beside this file: pages that need no server and no network."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader

_environment = Environment(loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True,
                           lstrip_blocks=True, autoescape=lambda name: name.endswith(".html"))


def rendered(template: str, **values) -> bytes:
    """In an .html what values say is text, whatever it is."""
    return _environment.get_template(template).render(**values).encode()
