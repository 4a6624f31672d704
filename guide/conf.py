"""Sphinx: the site, and the one page from which build.py makes the PDF."""

from guide.colours import THEMES

project = "FlashAttention, stage by stage"
html_title = project
author = "the authors of the course"
extensions = ["myst_parser", "guide.extension"]
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
myst_dmath_double_inline = True
html_theme = "basic" if tags.has("book") else "furo"  # noqa: F821, a name that Sphinx gives
html_theme_options = {} if html_theme == "basic" else {  # THEMES as --color-NAME in guide.css
    f"{theme}_css_variables": {f"color-{name}": colour for name, colour in colours.items()}
    for theme, colours in THEMES.items()}
html_static_path = ["static"]
html_css_files = ["guide.css"]
html_js_files = ["walk.js", "check.js", "play.js"]
html_copy_source = False
html_show_sourcelink = html_show_copyright = False
html_use_index = False
numfig, numfig_secnum_depth = True, 0
numfig_format = {"figure": "Figure %s.", "table": "Table %s."}
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"
nitpicky = True
