"""The pictures of the page, README and the guide as SVG, and their colours."""
