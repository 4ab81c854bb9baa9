"""Training speed against the stock stack: tokens per second of a whole `train()`, as ratios within one run.

Ours is `PretrainTrainer` on Strata with everything on that the tiny recipe has on: z-loss, spike detection, router
health, throughput, data order. The peers are a stock `Trainer` on stock models of equal active parameters: Qwen3-MoE
of the same shape (also equal in total), and a dense Qwen3 as wide as the experts a token meets.
Rounds alternate, so that a busy machine slows all alike; the figure is the median over rounds.

Run it with one thread: `make bench`, or `OMP_NUM_THREADS=1 python tests/benchmarks/training.py`.
"""

import argparse
import contextlib
import io
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path


os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_PRETRAIN_QUIET", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch  # noqa: E402
import transformers  # noqa: E402
from testing_utils import markov_documents  # noqa: E402
from transformers import (  # noqa: E402
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)

from hf_pretrain import MixtureDataset, MixtureSchedule, PretrainConfig, PretrainTrainer, TokenSource  # noqa: E402
from hf_pretrain.models.strata.configuration_strata import StrataConfig  # noqa: E402
from hf_pretrain.models.strata.modeling_strata import StrataForCausalLM  # noqa: E402


def shape_of(config: StrataConfig) -> dict:
    """The fields that a stock model shares with the Strata model."""
    names = (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "tie_word_embeddings",
    )
    return {name: getattr(config, name) for name in names}


def make_model(kind: str, config: StrataConfig) -> torch.nn.Module:
    """Builds one of the models to compare."""
    torch.manual_seed(0)
    if kind == "strata":
        return StrataForCausalLM(config)
    if kind == "qwen3_moe":
        return Qwen3MoeForCausalLM(
            Qwen3MoeConfig(
                **shape_of(config),
                num_experts=config.num_experts,
                num_experts_per_tok=config.num_experts_per_tok,
                moe_intermediate_size=config.moe_intermediate_size,
                norm_topk_prob=True,
                output_router_logits=True,
                use_cache=False,
            )
        )
    width = config.num_experts_per_tok * config.moe_intermediate_size
    return Qwen3ForCausalLM(Qwen3Config(**shape_of(config), intermediate_size=width, use_cache=False))


class Columns(torch.utils.data.Dataset):
    """The same windows, as a stock script would hand them over."""

    def __init__(self, dataset: MixtureDataset) -> None:
        self.rows = [
            {"input_ids": item["input_ids"], "labels": item["labels"]}
            for item in (dataset[index] for index in range(len(dataset)))
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict:
        return self.rows[index]


class Clock(TrainerCallback):
    """Times the updates after the first, which pays for what is made once."""

    def __init__(self) -> None:
        self.start = self.end = 0.0

    def on_step_end(self, args: object, state: TrainerState, control: object, **kwargs: object) -> None:
        self.end = time.perf_counter()
        if state.global_step == 1:
            self.start = self.end


def tokens_per_second(kind: str, config: StrataConfig, source: TokenSource, shape: tuple[int, int, int]) -> float:
    """Trains for (steps, batch, length) and returns the rate of the updates after the first."""
    steps, batch, length = shape
    common = {
        "max_steps": steps,
        "per_device_train_batch_size": batch,
        "learning_rate": 1e-3,
        "logging_steps": 5,
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": "none",
    }
    dataset = MixtureDataset(
        [source], MixtureSchedule.from_weights({"text": 1.0}, steps * batch), length, seed=0, max_epochs=1000
    )
    clock = Clock()
    model = make_model(kind, config)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        if kind == "strata":
            args = PretrainConfig(output_dir=folder, seq_length=length, max_epochs=1000.0, **common)
            trainer = PretrainTrainer(model=model, args=args, train_dataset=dataset, callbacks=[clock])
        else:
            args = TrainingArguments(output_dir=folder, **common)
            trainer = Trainer(model=model, args=args, train_dataset=Columns(dataset), callbacks=[clock])
        trainer.train()
    return (steps - 1) * batch * length / (clock.end - clock.start)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=256)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()

    config = StrataConfig.preset("tiny-moe", vocab_size=4096, router_aux_loss_coef=0.01)
    tokens, ends = [], []
    for document in markov_documents(2000, config.vocab_size, length=(50, 400)):
        tokens += document
        ends.append(len(tokens))
    source = TokenSource.from_arrays("text", tokens, ends, config.vocab_size, 0)

    kinds = ("strata", "qwen3_moe", "qwen3 dense")
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(options.rounds):
        for kind in kinds if number % 2 == 0 else reversed(kinds):
            rate = tokens_per_second(kind, config, source, (options.steps, options.batch, options.length))
            rates[kind].append(rate)
    labels = {
        "strata": "PretrainTrainer + Strata MoE, all on",
        "qwen3_moe": "Trainer + Qwen3-MoE, same shape",
        "qwen3 dense": "Trainer + dense Qwen3, equal active parameters",
    }
    print(f"{'':<50}{'tokens/s':>10}{'ours / this':>13}{'min':>7}{'max':>7}")
    for kind in kinds:
        ratios = [ours / peer for ours, peer in zip(rates["strata"], rates[kind], strict=True)]
        shown = f"{statistics.median(ratios):>13.3f}{min(ratios):>7.3f}{max(ratios):>7.3f}" if kind != "strata" else ""
        print(f"{labels[kind]:<50}{statistics.median(rates[kind]):>10.0f}{shown}")


if __name__ == "__main__":
    main()
