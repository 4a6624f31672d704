"""Defines the colours of figures, boxes and pages, light and dark, and measures their distances.

Names: ink, faint, line, paper; whole, cut, skipped, sink for masks; a ... e for curves; wrong and
right for the boxes of mistakes, with their backgrounds.  tests/guide/test_colours.py requires
4.5 : 1 for words, and differences that a red-green blind reader can see.
"""

import math

from grader.drawings.svg import COLOURS  # the grader's colours of masks

THEMES = {
    "light": {**COLOURS["light"], "skipped": COLOURS["light"]["hidden"],
              "a": "#2f6fb4", "b": "#c2572b", "c": "#3b8a52", "d": "#7d56b3", "e": "#5f6872"},
    "dark": {**COLOURS["dark"], "skipped": COLOURS["dark"]["hidden"],
             "a": "#6ba7e6", "b": "#ef8a5d", "c": "#6fc488", "d": "#b694e8", "e": "#9aa4ae"},
}

# Machado, Oliveira and Fernandes (2009), full dichromats, in linear RGB.
BLINDNESS = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216),
                   (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413),
                     (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602),
                   (0.004733, 0.691367, 0.303900)),
}


def _linear(colour: str) -> list[float]:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]


def contrast(a: str, b: str) -> float:
    """WCAG's contrast ratio of two colours "#rrggbb": 1 if equal, 21 for black on white."""
    light, dark = sorted((0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05
                          for r, g, b in (_linear(a), _linear(b))), reverse=True)
    return light / dark


def difference(a: str, b: str, blindness: str | None = None) -> float:
    """The CIE76 distance of two colours for a reader with this blindness; 2 is just visible."""
    return math.dist(*(_lab(_seen(_linear(colour), blindness)) for colour in (a, b)))


def _seen(linear, blindness):
    if blindness is None:
        return linear
    return [min(max(sum(m * x for m, x in zip(row, linear, strict=True)), 0.0), 1.0)
            for row in BLINDNESS[blindness]]


def _lab(linear):
    r, g, b = linear
    x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505
    y = 0.2126 * r + 0.7152 * g + 0.0722 * b
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)
