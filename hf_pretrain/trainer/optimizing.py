"""The optimizer's side of `PretrainTrainer`: which optimizer, and how gradients are clipped.

`optim` names one of transformers' optimizers, or `"muon"` or `"stable_adamw"` of `hf_pretrain.optim`. `clipping` says
what happens between the backward pass and the update; the norm that is logged, and that spikes are looked for in, is
always the one before. What a clipping has learnt is in every checkpoint, under `CLIPPING_FILE`.
"""

import math
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer

from hf_pretrain.optim.clipping import AdaGC, ZClipStatistics, clip_factor
from hf_pretrain.optim.muon import MuonWithAdamW
from hf_pretrain.optim.param_groups import parameter_groups
from hf_pretrain.optim.stable_adamw import StableAdamW
from hf_pretrain.utils.atomic import read_json, write_json
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


CLIPPING_FILE = "clipping.json"
# Optimizers of this package, with the options that `optim_args` may give them.
OWN_OPTIMIZERS: dict[str, dict[str, type]] = {"muon": {"momentum": float, "ns_steps": int}, "stable_adamw": {}}


def own_optimizer_options(name: str, text: str | None) -> dict[str, Any]:
    """Reads `optim_args` for an optimizer of this package.

    Args:
        name (`str`): `"muon"` or `"stable_adamw"`.
        text (`str`, *optional*): As transformers writes it, `"momentum=0.9,ns_steps=6"`.

    Returns:
        `dict[str, Any]`: The options.

    Raises:
        UserError: If an option is unknown or no number.
    """
    options: dict[str, Any] = {}
    known = OWN_OPTIMIZERS[name]
    for entry in (text or "").replace(" ", "").split(","):
        key, _, value = entry.partition("=")
        if not entry:
            continue
        if key not in known:
            if not known:
                raise UserError(f"optim_args = {text!r}; {name} has no options beside those of AdamW: leave it out")
            raise UserError(f"optim_args: {unknown_name_message('option', key, known)}")
        try:
            options[key] = known[key](value)
        except ValueError as error:
            raise UserError(f"optim_args: {key} = {value!r}; a number is needed, e.g. {key}=5") from error
    return options


class OptimizerMixin(Trainer):
    """Optimizers and clipping of this package, in a `Trainer` whose `args` are a `PretrainConfig`."""

    _clipper: ZClipStatistics | AdaGC | None = None

    # ---- optimizer ----

    def get_decay_parameter_names(self, model: Any) -> list[str]:
        """Names the parameters that weight decay acts on: matrices, but no norms, biases or embeddings.

        Args:
            model (`Module`): The model.

        Returns:
            `list[str]`: Names of parameters.
        """
        groups = parameter_groups(model, weight_decay=1.0)
        return [name for group in groups if group["weight_decay"] for name in group["names"]]

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Makes the optimizer that `optim` names.

        Args:
            model (`Module`, *optional*): The model whose parameters it gets.

        Returns:
            `Optimizer`: The optimizer.

        Raises:
            UserError: If it cannot train these parameters.
        """
        args = self.args
        if self.optimizer is None and args.optim in OWN_OPTIMIZERS:
            if self.is_deepspeed_enabled:
                raise UserError(
                    f"optim = {args.optim}; DeepSpeed lays parameters out flat, and it works on whole tensors: use "
                    "adamw_torch, or FSDP2"
                )
            options = {
                "lr": args.learning_rate,
                "betas": (args.adam_beta1, args.adam_beta2),
                "eps": args.adam_epsilon,
                "weight_decay": args.weight_decay,
                **own_optimizer_options(args.optim, args.optim_args),
            }
            model = self.model if model is None else model
            if args.optim == "muon":
                self.optimizer = MuonWithAdamW(model, **options)
            else:
                self.optimizer = StableAdamW(parameter_groups(model, args.weight_decay), **options)
        return super().create_optimizer(model)

    # ---- clipping ----

    def _clip_grad_norm(self, model: Any) -> torch.Tensor:
        kind = self.args.clipping
        if kind == "norm":
            return super()._clip_grad_norm(model)
        # The norm alone: an infinite bound leaves the gradients as they are, unscaled and summed over the processes.
        norm = self._norm_before_clipping(model)
        if kind == "zclip":
            self._clip_to_zclip(model, float(norm))
        else:
            self._clip_to_adagc(model)
        return norm

    def _norm_before_clipping(self, model: Any) -> torch.Tensor:
        bound, self.args.max_grad_norm = self.args.max_grad_norm, math.inf
        try:
            return super()._clip_grad_norm(model)
        finally:
            self.args.max_grad_norm = bound

    def _clip_to_zclip(self, model: Any, norm: float) -> None:
        if norm == 0.0:
            return  # a step without a label
        if self._clipper is None:
            self._clipper = ZClipStatistics()
        target = min(self._clipper.observe(norm), self.args.max_grad_norm)
        if math.isfinite(norm) and target < norm:
            factor = clip_factor(norm, target)
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)

    def _clip_to_adagc(self, model: Any) -> None:
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        zero = torch.zeros((), device=self.args.device)
        norms = torch.stack(
            [zero if one.grad is None else _whole(torch.linalg.vector_norm(one.grad.float())) for one in parameters]
        )
        if self._clipper is None:
            self._clipper = AdaGC()
        if self._clipper.gamma is not None:
            if len(self._clipper.gamma) != len(norms):
                raise UserError(
                    f"clipping = adagc; the checkpoint knows {len(self._clipper.gamma)} parameters, the model trains "
                    f"{len(norms)}: resume with the same parameters frozen"
                )
            self._clipper.gamma = self._clipper.gamma.to(norms.device)
        factors = self._clipper.observe(norms, self.args.max_grad_norm).to(norms.device)
        for parameter, factor in zip(parameters, factors, strict=True):
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    # ---- checkpoints ----

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        self.save_clipping(output_dir)

    def save_clipping(self, output_dir: str | Path) -> None:
        """Writes what the clipping has learnt, if it has.

        Args:
            output_dir (`str` or `Path`): Folder of the checkpoint.
        """
        if self._clipper is not None and self.args.should_save:
            write_json(Path(output_dir) / CLIPPING_FILE, {"clipping": self.args.clipping, **self._clipper.state()})

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        self._clipper = None
        path = Path(checkpoint or "") / CLIPPING_FILE
        if checkpoint is None or not path.is_file():
            return
        saved = read_json(path)
        if saved.pop("clipping") == self.args.clipping:
            self._clipper = ZClipStatistics() if self.args.clipping == "zclip" else AdaGC()
            self._clipper.load_state(saved)


def _whole(norm: torch.Tensor) -> torch.Tensor:
    """The norm of a sharded gradient, over all shards."""
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm
