"""Liger's RoPE, RMSNorm and SwiGLU on a model that exists: patched where they are right, reported where not.

RMSNorm and SwiGLU are patched on the modules of this one model. RoPE is a function that the attention code looks up in
its Python module, so that patch acts on all models of the family in this process until it is undone. Before anything
is replaced the fused and the plain version run once on small random tensors, forward and backward, for RoPE with two
query heads on one key head (bugs Z5: a kernel once left such keys unrotated). What differs, or does not run, stays
plain and the report says why.
"""

import importlib
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.optional import is_available


logger = logging.getLogger(__name__)

_TOLERANCE = 1e-4


@dataclass
class PatchReport:
    """What was patched on a model, what was not and why, and the way back.

    Args:
        patched (`dict[str, str]`): Kernel name to what it acts on, for example `"rms_norm": "9 modules"`.
        skipped (`dict[str, str]`): Kernel name to the reason.
    """

    patched: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    _undo: list[Callable[[], None]] = field(default_factory=list, repr=False)

    def undo(self) -> None:
        """Puts everything back as it was; a second call does nothing."""
        while self._undo:
            self._undo.pop()()

    def __str__(self) -> str:
        lines = [f"{name}: patched ({what})" for name, what in self.patched.items()]
        lines += [f"{name}: not patched ({why})" for name, why in self.skipped.items()]
        return "; ".join(lines) or "nothing asked for"


def why_kernels_cannot_run(device: torch.device | str) -> str | None:
    """Tells why Liger's kernels cannot run on a device.

    Args:
        device (`torch.device` or `str`): Where the model is.

    Returns:
        `str`, *optional*: The reason, `None` if they can be tried.
    """
    if not is_available("liger_kernel"):
        return 'liger_kernel is not installed: run `pip install "hf-pretrain[liger]"`'
    if not is_available("triton"):
        return "triton is not installed: run `pip install triton`"
    kind = torch.device(device).type
    if kind == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return "the model is on a CPU, and Triton has no driver for it"
    return None


def patch_with_liger(
    model: nn.Module, *, rope: bool = True, rms_norm: bool = True, swiglu: bool = True, required: bool = False
) -> PatchReport:
    """Replaces a model's RoPE, RMSNorm and SwiGLU by Liger's kernels where these give the same numbers.

    Args:
        model (`torch.nn.Module`): Strata or a transformers model, on its device.
        rope (`bool`, *optional*, defaults to `True`): Patch `apply_rotary_pos_emb` of the model's code.
        rms_norm (`bool`, *optional*, defaults to `True`): Patch the modules whose class is an RMSNorm.
        swiglu (`bool`, *optional*, defaults to `True`): Patch the modules with gate, up and down projection and SiLU.
        required (`bool`, *optional*, defaults to `False`): Raise unless all that is asked for can be patched.

    Returns:
        `PatchReport`: With `undo()`.

    Raises:
        UserError: With `required`, naming what could not be patched; the model is left as it was.
    """
    report = PatchReport()
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    wanted = {"rope": (rope, _patch_rope), "rms_norm": (rms_norm, _patch_rms_norm), "swiglu": (swiglu, _patch_swiglu)}
    reason = why_kernels_cannot_run(device)
    for name, (asked, patch) in wanted.items():
        if not asked:
            continue
        if reason is not None:
            report.skipped[name] = reason
        else:
            patch(model, device, report)
    if required and report.skipped:
        report.undo()
        raise UserError(f"fused kernels were required, but {report}; leave `required` off, or ask for fewer.")
    return report


def _functional() -> ModuleType:
    return importlib.import_module("liger_kernel.transformers.functional")


def _kernel_errors() -> tuple[type[Exception], ...]:
    """What a kernel that does not fit this device, dtype or version may raise when it is called."""
    triton_error = importlib.import_module("triton.errors").TritonError
    return (triton_error, RuntimeError, TypeError, ValueError, AttributeError, ImportError)


def _agree(plain: Callable, fused: Callable, inputs: list[torch.Tensor]) -> str | None:
    """Runs both forward and backward on copies of the inputs; returns what is wrong, or `None`."""
    results = []
    for function in (plain, fused):
        leaves = [one.clone().requires_grad_() for one in inputs]
        try:
            outputs = function(*leaves)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            # uneven weights, so that a wrong gradient cannot hide behind a symmetric sum
            sum(
                (out.float() * torch.linspace(-1, 1, out.shape[-1], device=out.device)).sum() for out in outputs
            ).backward()
        except _kernel_errors() as error:
            if function is plain:
                raise
            return f"its kernel failed in the self-check: {type(error).__name__}: {error}".splitlines()[0][:200]
        results.append([*(out.detach() for out in outputs), *(leaf.grad for leaf in leaves)])
    for one, other in zip(*results, strict=True):
        difference = (one.float() - other.float()).abs().max().item()
        if not difference <= _TOLERANCE * max(1.0, one.float().abs().max().item()):
            return f"its kernel gave other numbers in the self-check (difference {difference:.2g})"
    return None


def _rope_modules(model: nn.Module) -> list[ModuleType]:
    """Python modules of the model's classes that define or import `apply_rotary_pos_emb`."""
    names = sorted({type(one).__module__ for one in model.modules()})
    return [sys.modules[name] for name in names if hasattr(sys.modules.get(name), "apply_rotary_pos_emb")]


def check_rope(plain: Callable, fused: Callable, device: torch.device | str) -> str | None:
    """Compares two RoPE functions on two query heads and one key head (bugs Z5).

    Args:
        plain (`Callable`): `(q, k, cos, sin) -> (q, k)`.
        fused (`Callable`): The same.
        device (`torch.device` or `str`): Where to run.

    Returns:
        `str`, *optional*: What differs, `None` if they agree.
    """
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, 2, 2, 128), (1, 1, 2, 128))
    query, key = (torch.randn(shape, generator=generator).to(device) for shape in shapes)
    angles = torch.rand(1, 2, 64, generator=generator).to(device) * 6.28
    cos, sin = (torch.cat((one, one), dim=-1) for one in (angles.cos(), angles.sin()))
    fault = _agree(
        lambda q, k: plain(q, k, cos, sin), lambda q, k: fused(q.contiguous(), k.contiguous(), cos, sin), [query, key]
    )
    if fault is None and torch.equal(fused(query.clone(), key.clone(), cos, sin)[1], key):
        return "it leaves the keys unrotated"
    return fault


def _patch_rope(model: nn.Module, device: torch.device, report: PatchReport) -> None:
    modules = _rope_modules(model)
    if not modules:
        report.skipped["rope"] = "the model's code has no apply_rotary_pos_emb"
        return
    liger_rope = importlib.import_module("liger_kernel.transformers.rope").liger_rotary_pos_emb
    for module in modules:
        plain = module.apply_rotary_pos_emb
        try:
            fault = check_rope(plain, liger_rope, device)
        except TypeError:
            fault = f"{module.__name__}.apply_rotary_pos_emb takes other arguments than q, k, cos, sin"
        if fault is not None:
            report.skipped["rope"] = fault
            return
    for module in modules:
        plain = module.apply_rotary_pos_emb

        def fused(q, k, cos, sin, unsqueeze_dim=1, _kernel=liger_rope):
            """Rotates queries and keys by Liger's kernel."""
            return _kernel(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)

        module.apply_rotary_pos_emb = fused
        report._undo.append(lambda module=module, plain=plain: setattr(module, "apply_rotary_pos_emb", plain))
    report.patched["rope"] = "all models of " + ", ".join(module.__name__.rpartition(".")[2] for module in modules)


def _patch_modules(
    model: nn.Module, report: PatchReport, name: str, wanted: Callable, fused_forward: Callable, missing: str
) -> None:
    """Self-checks one module of each class and size, then patches all that are like it."""
    found = [one for one in model.modules() if wanted(one)]
    if not found:
        report.skipped[name] = missing
        return
    verdicts: dict[Any, str | None] = {}
    count, faults = 0, []
    for module in found:
        weight = next(module.parameters())
        width = weight.shape[-1]
        key = (type(module), width, weight.dtype)
        if key not in verdicts:
            generator = torch.Generator().manual_seed(0)
            sample = torch.randn(2, 3, width, generator=generator).to(weight.device, weight.dtype)
            copies = _Detached(module)
            verdicts[key] = _agree(copies(module.forward), copies(lambda x, m=module: fused_forward(m, x)), [sample])
        if verdicts[key] is not None:
            faults.append(f"{type(module).__name__}: {verdicts[key]}")
            continue
        _bind(module, fused_forward, report)
        count += 1
    if count:
        report.patched[name] = f"{count} module{'s' * (count != 1)}"
    if faults:
        report.skipped[name if not count else f"{name} ({len(faults)} modules)"] = faults[0]


class _Detached:
    """Runs a module's forward without leaving gradients in its parameters."""

    def __init__(self, module: nn.Module) -> None:
        self.parameters = list(module.parameters())

    def __call__(self, function: Callable) -> Callable:
        def run(x: torch.Tensor) -> torch.Tensor:
            flags = [one.requires_grad for one in self.parameters]
            for one in self.parameters:
                one.requires_grad_(False)
            try:
                return function(x)
            finally:
                for one, flag in zip(self.parameters, flags, strict=True):
                    one.requires_grad_(flag)

        return run


def _bind(module: nn.Module, forward: Callable, report: PatchReport) -> None:
    """Gives one module another forward, and notes the way back."""
    had = vars(module).get("forward")
    module.forward = MethodType(forward, module)

    def back() -> None:
        if had is None:
            del module.forward
        else:
            module.forward = had

    report._undo.append(back)


def _is_rms_norm(module: nn.Module) -> bool:
    return (
        type(module).__name__.endswith("RMSNorm")
        and isinstance(getattr(module, "weight", None), nn.Parameter)
        and (hasattr(module, "variance_epsilon") or hasattr(module, "eps"))
    )


def _liger_norm_forward(self: nn.Module, hidden_states: torch.Tensor) -> torch.Tensor:
    eps = getattr(self, "variance_epsilon", None) or self.eps
    # in_place would overwrite the incoming gradient, which a residual branch may still need
    return _functional().liger_rms_norm(hidden_states, self.weight, eps, in_place=False)


def _patch_rms_norm(model: nn.Module, device: torch.device, report: PatchReport) -> None:
    _patch_modules(model, report, "rms_norm", _is_rms_norm, _liger_norm_forward, "the model has no RMSNorm")


def _is_swiglu(module: nn.Module) -> bool:
    parts = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    activation = type(getattr(module, "act_fn", None)).__name__
    return all(isinstance(one, nn.Linear) for one in parts) and activation in ("SiLU", "SiLUActivation")


def _liger_swiglu_forward(self: nn.Module, hidden_states: torch.Tensor) -> torch.Tensor:
    product = _functional().liger_swiglu(self.gate_proj(hidden_states), self.up_proj(hidden_states))
    return self.down_proj(product)


def _patch_swiglu(model: nn.Module, device: torch.device, report: PatchReport) -> None:
    missing = "the model has no SwiGLU module with gate_proj, up_proj, down_proj (fused experts are not patched)"
    _patch_modules(model, report, "swiglu", _is_swiglu, _liger_swiglu_forward, missing)
