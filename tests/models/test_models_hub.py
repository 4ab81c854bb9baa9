"""A saved Strata travels: to a process without this package, and through the stock Trainer's save and resume."""

import subprocess
import sys

import pytest
import torch
from transformers import Trainer, TrainingArguments

from hf_pretrain.models.strata.configuration_strata import StrataConfig
from hf_pretrain.models.strata.modeling_strata import StrataForCausalLM


SHAPE = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "num_experts": 4, "moe_intermediate_size": 24,
    "router_bias_update_rate": 0.01,
}  # fmt: skip

LOADER = """
import sys

class Refuse:  # also where the package is installed, as in a developer's environment
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "hf_pretrain":
            raise ModuleNotFoundError("the shipped files must not need hf_pretrain")

sys.meta_path.insert(0, Refuse())
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True).eval()
ids = torch.arange(1, 13).view(2, 6)
torch.save({"logits": model(ids).logits.detach(), "text": model.generate(ids, max_new_tokens=4, do_sample=False)},
           sys.argv[2])
print(type(model).__module__)
"""


@pytest.fixture
def auto_class(monkeypatch):
    monkeypatch.setattr(StrataConfig, "_auto_class", None)
    monkeypatch.setattr(StrataForCausalLM, "_auto_class", None)
    StrataConfig.register_for_auto_class()
    StrataForCausalLM.register_for_auto_class("AutoModelForCausalLM")


@pytest.mark.slow
def test_a_process_with_only_transformers_loads_and_generates(auto_class, tmp_path):
    torch.manual_seed(0)
    model = StrataForCausalLM(StrataConfig(**SHAPE)).eval()
    saved, elsewhere = tmp_path / "model", tmp_path / "elsewhere"
    elsewhere.mkdir()
    model.save_pretrained(saved)
    shipped = {path.name for path in saved.glob("*.py")}
    assert {"configuration_strata.py", "modeling_strata.py", "routing_strata.py", "experts_strata.py"} <= shipped
    environment = {"PATH": "", "HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", LOADER, str(saved), str(tmp_path / "out.pt")],
        cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "transformers_modules" in result.stdout
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    ids = torch.arange(1, 13).view(2, 6)
    torch.testing.assert_close(found["logits"], model(ids).logits, atol=1e-6, rtol=0)
    assert torch.equal(found["text"], model.generate(ids, max_new_tokens=4, do_sample=False))


def trainer(folder, steps, batch=4, accumulation=1, save=0, same_rows=False):
    torch.manual_seed(0)
    model = StrataForCausalLM(StrataConfig(**SHAPE, router_aux_loss_coef=1.0))
    generator = torch.Generator().manual_seed(3)
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(1, 64, (64, 9), generator=generator)]
    rows = rows[:1] * 64 if same_rows else rows
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=batch, learning_rate=1e-2,
        gradient_accumulation_steps=accumulation, logging_steps=1, report_to="none", use_cpu=True, disable_tqdm=True,
        save_strategy="steps" if save else "no", save_steps=save or 1, lr_scheduler_type="constant",
    )  # fmt: skip
    return Trainer(model=model, args=arguments, train_dataset=rows)


def losses(run):
    return [line["loss"] for line in run.state.log_history if "loss" in line]


def test_fused_experts_survive_the_stock_trainer(tmp_path):
    full = trainer(tmp_path, 4, save=2)
    full.train()
    resumed = trainer(tmp_path, 4)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert losses(resumed)[-2:] == losses(full)[-2:]
    for (name, left), right in zip(full.model.state_dict().items(), resumed.model.state_dict().values(), strict=True):
        assert torch.equal(left, right), name


def test_the_stock_trainer_does_not_multiply_the_balance_loss(tmp_path):
    logs = []
    for batch, accumulation in [(8, 1), (2, 4), (1, 8)]:
        run = trainer(tmp_path, 1, batch, accumulation, same_rows=True)
        run.train()
        logs.append(run.state.log_history[0])
    for log in logs[1:]:
        assert log["loss"] == pytest.approx(logs[0]["loss"], abs=1e-4)
        assert log["grad_norm"] == pytest.approx(logs[0]["grad_norm"], rel=1e-4)
