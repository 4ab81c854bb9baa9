"""Runs to break: forked processes that train, and the faults put into them. Used by `benchmarks/chaos.py`."""

import contextlib
import errno
import functools
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from testing_utils import markov_documents, tiny_tokenizer, write_token_folder

from hf_pretrain.callbacks.preemption import PreemptionCallback
from hf_pretrain.data.order import DataOrder
from hf_pretrain.models.strata.modeling_strata import StrataModel
from hf_pretrain.scripts import pretrain
from hf_pretrain.trainer import checkpoint as checkpoints
from hf_pretrain.trainer.pretrain_trainer import PretrainTrainer
from hf_pretrain.utils.atomic import write_json
from hf_pretrain.utils.manifest import StepManifest


STAGE = "2_pretrain"
LENGTH, BATCH, BASE, FAULT, STEPS = 64, 16, 96, 104, 128
CONFIG = {
    "stage": "pretrain",
    "corpus": "1_corpus",
    "model": {
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_experts": 4,
        "moe_intermediate_size": 48,
    },
    "mixture": {"web": 0.7, "books": 0.3},
    "seq_length": LENGTH,
    "global_batch_size": BATCH,
    "per_device_train_batch_size": BATCH,
    "train_tokens": STEPS * BATCH * LENGTH,
    "learning_rate": 1.5e-3,
    "warmup_steps": 5,
    "decay_fraction": 0.0,
    "logging_steps": 1,
    "save_steps": 8,
    "save_total_limit": 3,
    "spike_action": "rewind",
}


# ---- processes ----


def start(work: Callable[[], int], log: Path) -> int:
    """Forks a process that works and writes all it says into a file; nothing is imported anew."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def finish(pid: int, limit: float = 120.0) -> int:
    """Waits for a process: its exit code, or minus the signal that ended it."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -signal.SIGKILL


# ---- a run by the command line ----


def write_run(folder: Path) -> Path:
    """Writes a recipe and the corpus stage of its run; gives the stage's file."""
    run, recipe = folder / "run", folder / "recipe"
    recipe.mkdir(parents=True)
    corpus = run / "1_corpus"
    for seed, name in enumerate(("web", "books")):
        for split, count in (("train", 2500), ("validation", 20)):
            documents = markov_documents(count, seed=seed + 100 * (split != "train"))
            write_token_folder(corpus / "tokens" / split / name, name, documents, split=split)
    tiny_tokenizer().save_pretrained(corpus / "tokenizer")
    StepManifest(corpus / "stage.json", "0" * 16).start().finish(1.0)
    write_json(run / "recipe.json", {"name": "recipe", "stages": []})
    (recipe / "1_corpus.yaml").write_text(f"stage: corpus\nrun_dir: {run}\n")
    path = recipe / f"{STAGE}.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, "run_dir": str(run)}, sort_keys=False))
    return path


def train(config: Path, run: Path, fault: Callable[[], None] | None = None, *more: str) -> tuple[int, str]:
    """Runs the stage in a process of its own, with a fault put into it first; its exit code and last line."""
    log = run.parent / f"{run.name}.log"
    log.unlink(missing_ok=True)

    def work() -> int:
        if fault is not None:
            fault()
        return pretrain.main(["--config", str(config), "--run-dir", str(run), "--quiet", *more])

    code = finish(start(work, log))
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return code, lines[-1] if lines else ""


def stop_at(step: int) -> Callable[[], None]:
    """A fault: the scheduler's SIGTERM, which saves and stops."""

    def install() -> None:
        original = PreemptionCallback.on_step_end

        def on_step_end(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == step:
                self.signal_number = signal.SIGTERM
            original(self, args, state, control, **kwargs)

        PreemptionCallback.on_step_end = on_step_end

    return install


def final_weights(run: Path) -> bytes | None:
    """The saved model, to compare bit by bit."""
    path = run / STAGE / "model" / "model.safetensors"
    return path.read_bytes() if path.is_file() else None


def spikes_of(run: Path) -> list[dict[str, Any]]:
    """The spikes in the stage's facts."""
    path = run / "facts.json"
    facts = json.loads(path.read_text())["stages"].get(STAGE, {}) if path.is_file() else {}
    return facts.get("spikes", [])


def held_out(run: Path) -> float:
    """The mean held-out loss at the end; NaN without one."""
    path = run / "facts.json"
    facts = json.loads(path.read_text())["stages"].get(STAGE, {}) if path.is_file() else {}
    losses = [entry["loss"] for entry in facts.get("held_out", {}).get("end", {}).values()]
    return sum(losses) / len(losses) if losses else float("nan")


def autopsy_verdict(run: Path) -> str | None:
    """What the first autopsy of the run says."""
    found = sorted((run / STAGE / "autopsies").glob("step-*.json"))
    return json.loads(found[0].read_text())["verdict"]["kind"] if found else None


def rewinds_of(run: Path) -> list[dict[str, Any]]:
    """The run's journal."""
    path = run / STAGE / "rewinds.json"
    return json.loads(path.read_text())["rewinds"] if path.is_file() else []


# ---- faults of data, numerics, learning rate ----


def _rows(run: Path, step: int, count: int) -> list[int]:
    return DataOrder.read(run / STAGE).samples_of_step(step)[:count]


def garbage(run: Path, tokens: int) -> None:
    """Overwrites the first tokens of the faulty step's batch with uniformly random ids: documents that are noise."""
    order = DataOrder.read(run / STAGE)
    dataset, generator = order.build(), np.random.default_rng(tokens)
    for sample in _rows(run, FAULT, -(-tokens // LENGTH)):
        source, _, _ = dataset.locate(sample)
        shard = run / "1_corpus" / "tokens" / "train" / dataset.sources[source].name / "00000.ds"
        ids = np.memmap(shard, dtype="<u2", mode="r+")
        for first, last in dataset.spans(sample):
            ids[first:last] = generator.integers(1, 64, last - first)
        ids.flush()


def nan_batch(run: Path) -> Callable[[], None]:
    """One row of the faulty step makes the hidden states NaN, whenever and by whomever it is read."""
    dataset = DataOrder.read(run / STAGE).build()
    row = dataset[_rows(run, FAULT, 1)[0]]["input_ids"].tolist()

    def install() -> None:
        original = StrataModel.forward

        @functools.wraps(original)
        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            output = original(self, *args, **kwargs)
            ids = kwargs.get("input_ids", args[0] if args else None)
            if ids is not None and row in ids.tolist():
                output.last_hidden_state = output.last_hidden_state * float("nan")
            return output

        StrataModel.forward = forward

    return install


def before_step(step: int, act: Callable[[PretrainTrainer], None], times: int = 1) -> Callable[[], None]:
    """A fault: does something right before the forward of a step, and of those after it, so many times in all."""

    def install() -> None:
        original, left = PretrainTrainer.training_step, [times]

        def training_step(self: PretrainTrainer, *args: Any, **kwargs: Any) -> Any:
            if left[0] and self.state.global_step + 1 >= step:
                left[0] -= 1
                act(self)
            return original(self, *args, **kwargs)

        PretrainTrainer.training_step = training_step

    return install


def raise_rate(trainer: PretrainTrainer) -> None:
    """Thirty times the learning rate for this step."""
    for group in trainer.optimizer.param_groups:
        group["lr"] = group["lr"] * 30


def flip_bit(trainer: PretrainTrainer) -> None:
    """Turns the highest exponent bit of one weight over."""
    weight = trainer.accelerator.unwrap_model(trainer.model).model.layers[0].self_attn.q_proj.weight
    with torch.no_grad():
        weight.view(torch.int32)[0, 0] ^= 1 << 30


def kill_workers(trainer: PretrainTrainer) -> None:
    """Ends the data loader's processes without a word."""
    for child in multiprocessing.active_children():
        os.kill(child.pid, signal.SIGKILL)


def infinite_gradient() -> None:
    """One gradient of the faulty step is inf, once."""
    original, left = PretrainTrainer._clip_grad_norm, [1]

    def clip(self: PretrainTrainer, model: Any) -> Any:
        if left[0] and self.state.global_step + 1 == FAULT:
            left[0] -= 1
            next(one for one in model.parameters() if one.grad is not None).grad.view(-1)[0] = float("inf")
        return original(self, model)

    PretrainTrainer._clip_grad_norm = clip


# ---- faults of the machine ----


def disk_full() -> None:
    """The next save finds no room."""
    original, left = checkpoints.sha256_file, [1]

    def full(path: Path) -> str:
        if left[0] and ".tmp" in str(path):
            left[0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return original(path)

    checkpoints.sha256_file = full


def clock_jumps() -> None:
    """The clock goes back by a day at the faulty step, for good."""
    real, begin = time.time, time.monotonic()
    time.time = lambda: real() - (86_400 if time.monotonic() - begin > 1.5 else 0)


@contextlib.contextmanager
def moved_away(path: Path) -> Any:
    """A file that is gone while the block runs."""
    aside = path.with_suffix(".aside")
    os.replace(path, aside)
    try:
        yield
    finally:
        os.replace(aside, path)


def copy_run(base: Path, name: str) -> Path:
    """A run like another, to break."""
    target = base.parent / name
    shutil.copytree(base, target)
    return target
