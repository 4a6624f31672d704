"""Checks type, shape, dtype and device of what a submission returned, but not the values."""

import inspect

import torch

from ..wire import DTYPES, dtype_name

real_device = torch.Tensor.device.__get__  # pretend_gpu.py replaces it


class Failure(Exception):
    """A finding for the parent: an outcome, one sentence, and an id of OBSERVED."""

    def __init__(self, outcome: str, sentence: str, id: str = ""):
        super().__init__(sentence)
        self.outcome, self.sentence, self.id = outcome, sentence, id


def outputs_of(result, specs: list[dict], device: str, function: str) -> list[torch.Tensor]:
    """The outputs that a call of function returned.

    Raises:
        Failure: they do not match specs, or are not on device ("cpu" or "cuda").
    """
    names = ", ".join(spec["name"] for spec in specs)
    if result is None:
        raise Failure("wrong", f"want {names}; got None: {function} returned nothing",
                      "output-missing")
    if type(result) in (tuple, list):
        if len(result) < len(specs):
            raise Failure("wrong", f"want {len(specs)} outputs ({names}); got {len(result)}",
                          "output-missing")
        outputs = list(result)[:len(specs)]  # (o, lse) is fine if only o is wanted
    elif len(specs) > 1:
        kind = type(result).__name__
        raise Failure("wrong", f"want {len(specs)} outputs ({names}); got one {kind}",
                      "output-missing")
    else:
        outputs = [result]
    for output, spec in zip(outputs, specs, strict=True):
        check(output, spec, device)
    return outputs


def check(output, spec: dict, device: str) -> None:
    """Raise Failure if a tensor does not have this shape, dtype and device."""
    name, shape, dtype = spec["name"], tuple(spec["shape"]), DTYPES[spec["dtype"]]
    # A subclass could give other answers each time it is asked.
    if type(output) is not torch.Tensor:
        raise Failure("wrong", f"{name}: want a torch.Tensor; got {type(output).__name__}")
    found = tuple(output.shape)
    if found != shape or output.dtype != dtype:
        swapped = len(shape) == 4 and found == (shape[0], shape[2], shape[1], shape[3])
        what = "axes-swapped" if swapped else "dtype" if found == shape else "shape"
        raise Failure("wrong", f"{name}: want shape {shape}, {dtype_name(dtype)}; got {found}, "
                               f"{dtype_name(output.dtype)}"
                               + (" (axes 1 and 2 are swapped)" if swapped else ""),
                      "output-" + what)
    with torch._C.DisableTorchFunction():  # such as a default device set by the file
        found_on, layout = real_device(output).type, str(output.layout)
    if found_on != device or layout != "torch.strided":
        got = found_on if layout == "torch.strided" else layout
        raise Failure("wrong", f"{name}: want a dense tensor on {device}; got {got}")


def check_gradient(gradient, name: str, source: torch.Tensor, device: str) -> None:
    """As check(), for the gradient of an input."""
    check(gradient, {"name": f"d{name}", "shape": source.shape,
                     "dtype": dtype_name(source.dtype)}, device)


def signature_of(found, function):
    """The signature; None if Python cannot tell.  For `Function.apply`, forward's."""
    try:
        if isinstance(found, type) and issubclass(found, torch.autograd.Function):
            signature = inspect.signature(found.forward)
            if found.setup_context is torch.autograd.Function.setup_context:  # forward(ctx, ...)
                names = list(signature.parameters.values())[1:]
                signature = signature.replace(parameters=names)
            return signature
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None
