"""Run by test_kernels_liger_table.py: `use_liger_kernel=True` on Strata in a stock Trainer, on Liger's real kernels.

On a CPU in Triton's interpreter, where RMSNorm and SwiGLU do not run and `liger_kernel_config` turns them off; on a
GPU with all kernels. Arguments: device, folder.
"""

import sys

import pytest
import torch
from liger_patch_worker import SIZES, mend
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from hf_pretrain.callbacks.z_loss import ZLossCallback
from hf_pretrain.kernels.liger_table import register_strata
from hf_pretrain.models.strata.configuration_strata import StrataConfig
from hf_pretrain.models.strata.modeling_strata import StrataForCausalLM
from hf_pretrain.utils.errors import UserError


COEF = 1e-2


class Rows(Dataset):
    """Random rows, some labels ignored."""

    def __init__(self):
        self.ids = torch.randint(0, 32, (12, 8), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        labels = self.ids[index].clone()
        labels[: index % 4] = -100
        return {"input_ids": self.ids[index], "labels": labels}


def train(folder, device, callbacks, times=1, **more):
    """Two updates of two micro-batches and an evaluation; returns losses, held-out loss, weights and the Trainer."""
    torch.manual_seed(0)
    model = StrataForCausalLM(StrataConfig(**SIZES))
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=2,
        per_device_train_batch_size=3,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        report_to=[],
        use_cpu=device == "cpu",
        disable_tqdm=True,
        train_sampling_strategy="sequential",
        **more,
    )
    logits = []
    model.register_forward_hook(lambda module, _, out: logits.append(out.logits))
    trainer = Trainer(model, arguments, train_dataset=Rows(), eval_dataset=Rows(), callbacks=callbacks)
    for _ in range(times):
        trainer.train()
    history = trainer.state.log_history
    losses = [line["loss"] for line in history if "loss" in line]
    evaluation = [line["eval_loss"] for line in history if "eval_loss" in line]
    weights = torch.cat([one.detach().flatten() for one in model.parameters()])
    return losses, evaluation, weights, logits, trainer


def main(device, folder):
    options = {}
    if device == "cpu":
        mend()
        options = {"rms_norm": False, "swiglu": False}
    want = train(folder, device, [ZLossCallback(coef=COEF, implementation="chunked")])
    register_strata()

    # z-loss by Liger's own option, no callback of ours
    by_table = train(
        folder, device, [], use_liger_kernel=True, liger_kernel_config={**options, "lse_square_scale": COEF}
    )
    # z-loss by the callback, on Liger's kernel and on ours
    by_callback = [
        train(
            folder,
            device,
            [ZLossCallback(coef=COEF, implementation=name)],
            use_liger_kernel=True,
            liger_kernel_config=options,
        )
        for name in ("liger", "chunked")
    ]
    code = sys.modules[type(by_table[4].model.model.layers[0].self_attn).__module__]
    assert code.apply_rotary_pos_emb.__module__ == "hf_pretrain.kernels.liger_patch", "RoPE is not Liger's"
    for name, got in (("table", by_table), ("liger", by_callback[0]), ("chunked", by_callback[1])):
        assert got[0] == pytest.approx(want[0], rel=1e-4), name
        assert got[1] == pytest.approx(want[1], rel=1e-4), name
        torch.testing.assert_close(got[2], want[2], rtol=1e-3, atol=1e-4)
        # the Trainer passes skip_logits in evaluation: no forward of the run has built logits
        assert got[3] and all(one is None for one in got[3]), name
        print("ok", name)
    for line in [line for line in by_callback[0][4].state.log_history if "loss" in line]:
        assert line["loss"] == pytest.approx(line["ce_loss"] + line["z_loss"], rel=1e-4)

    # logits are there for those who need them, and a second train() has one loss, not one over another
    again = train(
        folder, device, [], times=2, use_liger_kernel=True, liger_kernel_config={**options, "lse_square_scale": COEF}
    )
    model = again[4].model
    assert model.loss_function.z_loss_coef == COEF and "_loss_function" not in model.loss_function._before
    ids = Rows().ids[:1].to(model.device)
    model.eval()
    assert model(input_ids=ids).logits.shape == (1, 8, 32)
    assert model(input_ids=ids, labels=ids).logits is not None
    with pytest.raises(ValueError, match="skip_logits = True; without labels"):
        model(input_ids=ids, skip_logits=True)
    with pytest.raises(UserError, match="lse_square_scale = 0.01, label_smoothing = 0.0; both act in the fused loss"):
        train(
            folder,
            device,
            [],
            use_liger_kernel=True,
            liger_kernel_config={**options, "lse_square_scale": COEF, "fused_linear_cross_entropy": False},
        )
    print("ok again")


if __name__ == "__main__":
    main(*sys.argv[1:])
