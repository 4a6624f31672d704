"""Reports that the stage must be skipped, for a reason it makes up."""
# stage: 3
# with: channel, zeros
# outcome: crashed, rejected, wrong


@_patch
def _forged(header, pack):
    if "evidence" in header:
        header = {"nonce": header["nonce"], "ok": False, "outcome": "skipped", "detail": "",
                  "sentence": "this GPU is too old", "line": None, "fatal": False}
    return pack(header)
