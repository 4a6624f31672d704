"""Finds the worker, and has replies changed on their way out."""
import json
import sys


def _worker():
    """The worker that has the channel, found among the callers' variables; None where none is."""
    frame = sys._getframe()
    while frame is not None:
        worker = frame.f_locals.get("self")
        if hasattr(worker, "channel"):
            return worker
        frame = frame.f_back
    return None


def _replies(field):
    """The function below makes the frame of replies with this field: (header, pack) -> bytes."""
    def patch(frame):
        worker = _worker()
        if worker is not None:
            names = type(worker.channel).send.__globals__
            pack = names["pack_header"]
            names["pack_header"] = lambda header: (
                frame(header, pack) if field in header else pack(header))

    return patch


def _plans(change):
    """The function below changes the plan of every call: dict -> dict."""
    @_replies("trace")
    def frame(header, pack):
        return pack({**header, "trace": json.dumps(change(json.loads(header["trace"])))})
