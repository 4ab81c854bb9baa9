"""What z-loss does: one tiny dense model at a usual, a high and a much too high learning rate, with and without it.

Text: Python's own reference topics (`pydoc_data.topics`, English prose in the standard library), as bytes. The model,
its first weights, the order of the batches and the optimizer (AdamW, no warm-up, constant rate, no weight decay,
clipping at 1) are the same in every run; only the learning rate and the coefficient differ. The head is not tied,
fp32, one thread, one seed.

Softmax does not see a constant added to all logits of a token, so cross-entropy does not hold the logsumexp ("lse")
anywhere; z-loss is the pull back to 0. `lse` is the root of its mean square over the training tokens of 20 steps, at a
quarter, a half and at the end of the run (untrained: ln 256 = 5.5); `max` the largest of any token in the run; `CE`
the cross-entropy over the last 20 steps (z-loss not in it), and on held-out text in evaluation.

    OMP_NUM_THREADS=1 python tests/benchmarks/zloss.py [--steps 300] [--quick]
"""

import argparse
import os
import pydoc_data.topics
import time


os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["OMP_NUM_THREADS"] = "1"

import torch  # noqa: E402

from hf_pretrain.losses.causal_lm import causal_lm_loss_from_logits  # noqa: E402
from hf_pretrain.losses.objective import CausalLMObjective  # noqa: E402
from hf_pretrain.models.strata.configuration_strata import StrataConfig  # noqa: E402
from hf_pretrain.models.strata.modeling_strata import StrataForCausalLM  # noqa: E402


LENGTH, BATCH, WINDOW = 64, 16, 20
NOTHING = 1e-30  # a coefficient that does nothing, so that the mean square of lse is told
RATES = (1e-2, 1e-1, 1.0)
COEFFICIENTS = (0.0, 1e-4, 1e-2)


def text_tokens() -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes to train on and bytes held out."""
    topics = pydoc_data.topics.topics
    text = "\n\n".join(topics[name] for name in sorted(topics))
    data = torch.tensor(list(text.encode("utf-8")), dtype=torch.long)
    cut = len(data) * 9 // 10
    return data[:cut], data[cut:]


def rows_of(data: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Windows of `LENGTH` bytes."""
    return data[starts.unsqueeze(1) + torch.arange(LENGTH)]


def make_model() -> StrataForCausalLM:
    """The model; the same first weights in all runs."""
    torch.manual_seed(0)
    config = StrataConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=False,
    )
    return StrataForCausalLM(config)


def train(rate: float, coefficient: float, steps: int, learn: torch.Tensor, held_out: torch.Tensor) -> dict:
    """Trains one model and describes its logits and losses."""
    model = make_model().train()
    objective = CausalLMObjective(coefficient or NOTHING, "chunked")
    objective.attach(model)
    squares = []
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    order = torch.Generator().manual_seed(1)
    top, losses = float("-inf"), []
    for _ in range(steps):
        ids = rows_of(learn, torch.randint(0, len(learn) - LENGTH, (BATCH,), generator=order))
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found = objective.pop_metrics()
        top = max(top, found["lse_max"])
        squares.append(found["z_loss"] / objective.z_loss_coef)
        losses.append(found["ce_loss"])
    objective.detach()
    model.eval()
    ids = rows_of(held_out, torch.arange(0, len(held_out) - LENGTH, LENGTH)[:256])
    with torch.no_grad():
        exact = causal_lm_loss_from_logits(model(input_ids=ids).logits, ids)
    return {
        "lse": [(sum(squares[i - WINDOW : i]) / WINDOW) ** 0.5 for i in (steps // 4, steps // 2, steps)],
        "max": top,
        "train": sum(losses[-WINDOW:]) / WINDOW,
        "held_out": exact.loss.item(),
    }


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--quick", action="store_true", help="80 steps")
    options = parser.parse_args()
    steps = 80 if options.quick else max(options.steps, 4 * WINDOW)
    torch.set_num_threads(1)
    learn, held_out = text_tokens()
    start = time.perf_counter()
    print("| learning rate | coefficient | lse at 1/4 | at 1/2 | at the end | max | CE | held-out CE |")
    print("|---|---|---|---|---|---|---|---|")
    for rate in RATES:
        for coefficient in COEFFICIENTS:
            found = train(rate, coefficient, steps, learn, held_out)
            lse = " | ".join(f"{value:.2f}" for value in found["lse"])
            print(
                f"| {rate:g} | {coefficient:g} | {lse} | {found['max']:.1f} | {found['train']:.3f} "
                f"| {found['held_out']:.3f} |",
                flush=True,
            )
    print(f"\n{steps} steps each, {time.perf_counter() - start:.0f} seconds.")


if __name__ == "__main__":
    main()
