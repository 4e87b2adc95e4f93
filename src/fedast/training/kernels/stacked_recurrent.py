"""Recurrent layers of stacked copies, step by step.

Neither cuDNN's and oneDNN's recurrent layers nor torch's fused cells can be mapped over. Within
``stacked_recurrence`` they are what torch itself decomposes them into.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
from torch._decomp import decompositions
from torch.overrides import TorchFunctionMode

_STEPS: Mapping[Any, Callable[..., Any]] = {
    torch.lstm: decompositions.lstm_impl,
    torch.gru: decompositions.gru_impl,
    torch.rnn_tanh: decompositions.rnn_tanh_input,
    torch.rnn_relu: decompositions.rnn_relu_input,
}


@contextmanager
def stacked_recurrence() -> Iterator[None]:
    """Without the libraries: cuDNN's layers would look for their weights in memory, and oneDNN's
    LSTM is part of the decomposition in single precision."""
    cudnn: Any = torch.backends.cudnn
    mkldnn: Any = torch.backends.mkldnn
    before, cudnn.enabled = cudnn.enabled, False
    flags = mkldnn.set_flags(False)
    try:
        with _Decomposed():
            yield
    finally:
        cudnn.enabled = before
        mkldnn.set_flags(*flags)


@final
class _Decomposed(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _STEPS and isinstance(args[3], bool):  # of packed sequences it is the weights
            return _STEPS[func](*args, **kwargs or {})
        return func(*args, **kwargs or {})
