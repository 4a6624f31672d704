"""An error class without a name, raised from one whose name turns text around."""
# stage: 2
# outcome: crashed


Turned = type("\u202e\x1b[2Jpassed\n\u2066", (Exception,), {"__module__": None})
Nameless = type("", (Turned,), {"__qualname__": ""})


def weighted_row_sum_forward(x, w):
    raise Nameless("\u202eegassem") from Turned("\x1b]0;title\x07")
