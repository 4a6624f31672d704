"""Frames and bytes, as both sides of the border have them."""

import socket
import threading

import pytest
import torch

from grader.sandbox import wire


@pytest.mark.parametrize("dtype", list(wire.DTYPES.values()), ids=wire.dtype_name)
def test_the_bytes_of_a_tensor_can_be_read_and_written_in_place(dtype):
    source = torch.arange(6).reshape(2, 3).to(dtype)
    target = torch.zeros(2, 3, dtype=dtype)
    wire.raw_bytes(target)[:] = wire.raw_bytes(source)
    assert torch.equal(source, target)
    assert wire.DTYPES[wire.dtype_name(dtype)] is dtype


def test_tensors_without_elements_and_without_axes_have_bytes():
    assert wire.raw_bytes(torch.empty(0, 3)).nbytes == 0
    assert wire.raw_bytes(torch.tensor(1.5)).nbytes == 4


def test_a_frame_sent_in_small_pieces_arrives_whole():
    ours, theirs = socket.socketpair()
    channel = wire.Channel(theirs.detach())
    payload = torch.arange(100_000.0)
    data = wire.pack_header({"nonce": "n", "op": "x"}) + bytes(wire.raw_bytes(payload))

    def send():
        for start in range(0, len(data), 999):
            ours.sendall(data[start:start + 999])

    thread = threading.Thread(target=send)
    thread.start()
    assert channel.receive_header() == {"nonce": "n", "op": "x"}
    received = torch.empty_like(payload)
    channel.receive_into(wire.raw_bytes(received))
    thread.join()
    assert torch.equal(received, payload)
    ours.close()
    channel.socket.close()
