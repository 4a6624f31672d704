"""A finding whose sentence is a list, its line a float and its detail a number."""
# stage: 3
# with: channel, zeros
# outcome: crashed, rejected, wrong


@_patch
def _forged(header, pack):
    if "evidence" in header:
        header = {"nonce": header["nonce"], "ok": False, "outcome": "wrong", "fatal": "no",
                  "sentence": [["\ud800"]], "detail": float("inf"), "line": 1e300}
    return pack(header)
