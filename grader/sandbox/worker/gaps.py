"""Storages whose entries lie so far apart that offsets pass 2^31.

Many a GPU has not the GiB between them, and gradings side by side would wait for one another.  So
there the addresses are reserved in one piece, and memory is mapped where entries lie, in whole
pages; it goes with the process.  A kernel that reads between entries ends with an illegal address.
"""

import ctypes

import torch

from .returned import Failure, real_device

_empty, _plain_copy = torch.empty, torch.Tensor.copy_  # before a submission could replace them
PINNED, ON_DEVICE, READ_AND_WRITE = 1, 1, 3  # as cuda.h numbers them


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", Location),
                ("win32", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


class Mapped:
    """Bytes at an address, as torch.as_tensor takes them."""

    def __init__(self, address: int, size: int):
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def spread(storage: torch.Tensor, apart: int, entries: int) -> torch.Tensor:
    """The storage with its entries so many elements from one another; itself if apart is 0."""
    if not apart:
        return storage
    width = storage.numel() // entries
    if real_device(storage).type == "cpu":
        whole = _empty((entries - 1) * apart + width, dtype=storage.dtype, device="cpu")
    else:
        try:
            whole = with_gaps(entries, apart, width, storage.dtype)
        except OSError as error:
            raise Failure("skipped", f"GPU memory with gaps: {error}") from None
    _plain_copy(whole.as_strided((entries, width), (apart, 1)), storage.view(entries, width))
    return whole


def gathered(whole: torch.Tensor, layout: dict) -> torch.Tensor:
    """The part of what spread() made that was sent."""
    if not layout["apart"]:
        return whole
    entries = layout["shape"][0]
    return whole.as_strided((entries, layout["numel"] // entries), (layout["apart"], 1))


def with_gaps(entries: int, apart: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """A 1-D tensor on the current GPU in which only entries of width elements have memory, each so
    many elements after the one before.

    Raises:
        OSError: there is no driver, or it does not map memory by the page.
    """
    driver = ctypes.CDLL("libcuda.so.1")

    def ask(name: str, *arguments) -> None:
        if code := getattr(driver, name)(*arguments):
            raise OSError(code, f"{name}: error {code}")

    place = Location(ON_DEVICE, torch.cuda.current_device())
    properties = ctypes.byref(Properties(type=PINNED, location=place))
    page, start = ctypes.c_size_t(), ctypes.c_ulonglong()
    ask("cuMemGetAllocationGranularity", ctypes.byref(page), properties, 0)
    page, size = page.value, ((entries - 1) * apart + width) * dtype.itemsize
    reserved = -(-size // page) * page
    ask("cuMemAddressReserve", ctypes.byref(start), ctypes.c_size_t(reserved), ctypes.c_size_t(0),
        ctypes.c_ulonglong(0), ctypes.c_ulonglong(0))
    for entry in range(entries):
        first = entry * apart * dtype.itemsize // page * page
        end = (entry * apart + width) * dtype.itemsize
        long = ctypes.c_size_t(-(-(end - first) // page) * page)
        memory, there = ctypes.c_ulonglong(), ctypes.c_ulonglong(start.value + first)
        ask("cuMemCreate", ctypes.byref(memory), long, properties, ctypes.c_ulonglong(0))
        ask("cuMemMap", there, long, ctypes.c_size_t(0), memory, ctypes.c_ulonglong(0))
        ask("cuMemSetAccess", there, long, ctypes.byref(Access(place, READ_AND_WRITE)),
            ctypes.c_size_t(1))
    return torch.as_tensor(Mapped(start.value, size), device="cuda").view(dtype)
