"""Makes storages whose entries are so far apart that offsets pass 2^31.

Many GPUs do not have the gigabytes in between.  So on a GPU the storage is managed memory, which
takes only the pages that are touched.
"""

import ctypes

import torch

from .returned import Failure, real_device

_empty, _plain_copy = torch.empty, torch.Tensor.copy_  # as they were before the submission
ATTACH_GLOBAL = 1  # from cuda.h: any stream may use the memory


class Mapped:
    """Bytes at an address, as torch.as_tensor takes them."""

    def __init__(self, address: int, size: int):
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def spread(storage: torch.Tensor, apart: int, entries: int) -> torch.Tensor:
    """Copy the storage to one with its entries `apart` elements apart; itself if apart is 0."""
    if not apart:
        return storage
    width = storage.numel() // entries
    size = (entries - 1) * apart + width
    if real_device(storage).type == "cpu":
        whole = _empty(size, dtype=storage.dtype, device="cpu")
    else:
        try:
            whole = managed(size, storage.dtype)
        except OSError as error:
            raise Failure("skipped", f"GPU memory with gaps: {error}") from None
    _plain_copy(whole.as_strided((entries, width), (apart, 1)), storage.view(entries, width))
    return whole


def gathered(whole: torch.Tensor, layout: dict) -> torch.Tensor:
    """The entries of what spread() made, packed as they were sent."""
    if not layout["apart"]:
        return whole
    entries = layout["shape"][0]
    return whole.as_strided((entries, layout["numel"] // entries), (layout["apart"], 1))


def managed(size: int, dtype: torch.dtype) -> torch.Tensor:
    """A 1-D tensor of `size` elements in managed memory, freed when the process ends.

    Raises:
        OSError: there is no driver, or it has no managed memory.
    """
    address = ctypes.c_ulonglong()
    size *= dtype.itemsize
    if code := ctypes.CDLL("libcuda.so.1").cuMemAllocManaged(
            ctypes.byref(address), ctypes.c_size_t(size), ATTACH_GLOBAL):
        raise OSError(code, f"cuMemAllocManaged: error {code}")
    return torch.as_tensor(Mapped(address.value, size), device="cuda").view(dtype)
