"""A regular expression that backtracks for most of a minute at import."""
# stage: 2
# outcome: timeout
# options: --timeout 5
import re

re.match(r"(a+)+$", "a" * 30 + "b")
