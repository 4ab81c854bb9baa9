"""Counts live bytes of real tensors while real code runs: what `torch.cuda.max_memory_allocated` is on a GPU."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class AllocationCounter(TorchDispatchMode):
    """Adds every new storage that an operation returns, and takes it off when the storage dies.

    Buffers inside one kernel are not seen. Storages made before are given to `watch`, in order to count them too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()

    def watch(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known or storage.device.type == "meta":
            return
        size = storage.nbytes()
        self._known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.watch(leaf)
        return result


def measured_step(model, rows: int, length: int, steps: int = 2) -> dict[str, int]:
    """Bytes that whole optimizer steps need.

    Returns:
        `dict`: `states` (weights and moments, before a step), `peak` (of everything), `forward` (held when the loss
            is there, weights and moments not counted).
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    counter = AllocationCounter()
    for tensor in [*model.parameters(), *model.buffers()]:
        counter.watch(tensor)
    ids = torch.randint(0, model.config.vocab_size, (rows, length), device=model.device)
    result = {}
    for _ in range(steps):
        with counter:
            states = counter.live
            counter.peak = counter.live
            loss = model(input_ids=ids, labels=ids).loss
            result = {"states": states, "forward": counter.live - states}
            loss.backward()
            result["at_backward"] = counter.peak
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            del loss
            result["peak"] = counter.peak
    return result
