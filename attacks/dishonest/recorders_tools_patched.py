"""Patches what the recorder is made of: no memory is filled with NaN, no storage is ever freed."""
# stage: 3
# with: fired, copied, by_address
# outcome: rejected
# says: came out wrong when the same kernels
# device: cpu
import base64
import weakref

torch.Tensor.fill_ = lambda self, value: fired() or self
weakref.finalize = lambda *args, **options: fired()
base64.b64encode = lambda data: b""
