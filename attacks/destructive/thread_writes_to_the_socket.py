"""A thread that floods the channel with frames that say nothing."""
# stage: 2
# base: problem_2.py
# with: in_a_call
# outcome: timeout, crashed
# options: --timeout 5
import json
import struct
import sys
import threading
import time

once = []


def flood():
    main = sys._current_frames()[threading.main_thread().ident]
    while main and "channel" not in getattr(main.f_locals.get("self"), "__dict__", {}):
        main = main.f_back
    channel = main.f_locals["self"].channel
    end = time.monotonic() + 30
    while time.monotonic() < end:
        text = json.dumps({"nonce": channel.nonce, "phase": "case"}).encode()
        channel.socket.sendall((struct.pack("!I", len(text)) + text) * 100)


def attack():
    if not once:
        once.append(threading.Thread(target=flood, daemon=True))
        once[0].start()
        time.sleep(60)
