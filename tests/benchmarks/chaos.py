"""A run that is killed, fed garbage and lied to: what survives, what is found out, and what watching costs.

Four tables: SIGKILL at seeded random moments, inside saves too, against an uninterrupted run; faults put into a run by
the command line; the spike detector on synthetic curves of published shapes; the cost of watching and of an atomic
checkpoint. Processes are forked from this one, so that a restart imports nothing.

Run it with one thread: `OMP_NUM_THREADS=1 python tests/benchmarks/chaos.py [--quick] [--part kills ...]`.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_PRETRAIN_QUIET", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "invariants"))

import chaos_runs as runs  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from test_invariants_data_order import Recorder  # noqa: E402
from tiny_training import BATCH, equal_weights, tiny_llama, trainer, weights  # noqa: E402

from hf_pretrain.callbacks.loss_spike import LossSpikeCallback  # noqa: E402
from hf_pretrain.trainer.checkpoint import latest_complete_checkpoint  # noqa: E402


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Prints a Markdown table."""
    print(f"\n### {title}\n")
    print("| " + " | ".join(heads) + " |")
    print("|" + "|".join("---" for _ in heads) + "|")
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |", flush=True)


# ---- (a) kills ----


def killed_run(folder: Path, result: Path, steps: int, seen: Path) -> int:
    """Trains from the newest checkpoint to the end; every batch's samples go to disk before they are used."""
    run = trainer(
        folder,
        tiny_llama(attention_dropout=0.3),
        steps=steps,
        anneal_weights={"b": 1.0},
        decay_fraction=0.5,
        save_strategy="steps",
        save_steps=2,
        save_total_limit=3,
    )
    recorder, stream = Recorder(run), open(seen, "a", encoding="utf-8")

    class Write(transformers.TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            step = state.global_step + 1
            stream.write(json.dumps([step, recorder.steps[step]]) + "\n")
            stream.flush()

    run.add_callback(Write())
    run.train(latest_complete_checkpoint(folder))
    torch.save(weights(run), result)
    return 0


def kill_table(work: Path, kills: int, seed: int) -> bool:
    """Kills a run again and again, and compares its end with that of one that was left alone."""
    generator, steps = random.Random(seed), 8 * kills
    begin = time.monotonic()
    straight = work / "straight.pt"
    code = runs.finish(
        runs.start(lambda: killed_run(work / "straight", straight, steps, work / "straight.seen"), work / "a.log"), 300
    )
    if code:
        print((work / "a.log").read_text()[-2000:])
        return False
    folder, result = work / "killed", work / "killed.pt"
    half_written = made = 0
    samples: dict[int, list[int]] = {}
    for life in range(kills + 1):
        seen = work / f"{life}.seen"
        pid = runs.start(lambda seen=seen: killed_run(folder, result, steps, seen), work / "a.log")
        if life == kills:
            code = runs.finish(pid, 300)
        else:
            wanted, in_save, delay = generator.randint(1, 5), life % 2 == 1, generator.random()
            while not seen.exists() or seen.read_bytes().count(b"\n") < wanted:
                time.sleep(0.0005)
                if os.waitpid(pid, os.WNOHANG)[0]:
                    print((work / "a.log").read_text()[-2000:])
                    return False
            limit = time.monotonic() + 2.0
            while in_save and not list(folder.glob(".checkpoint-*.tmp")) and time.monotonic() < limit:
                time.sleep(0.0002)
            time.sleep(delay * (0.03 if in_save else 0.05))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            made += 1
            half_written += bool(list(folder.glob(".checkpoint-*.tmp")) or list(folder.glob(".checkpoint-*.old")))
        samples |= dict(map(json.loads, seen.read_text().splitlines()))
    same = code == 0 and equal_weights(torch.load(straight, weights_only=True), torch.load(result, weights_only=True))
    read = [number for step in sorted(samples) for number in samples[step]]
    once = read == list(range(steps * BATCH))
    rows = [
        [made, half_written, "yes" if same else "NO", "yes" if once else "NO", f"{time.monotonic() - begin:.0f} s"]
    ]
    heads = ["kills", "of them inside a save", "weights bit-equal to the uninterrupted run"]
    table("Killed by SIGKILL", [*heads, "every sample exactly once", "time"], rows)
    return same and once


# ---- (b) faults ----


class Faults:
    """The faults, each in a copy of one run that stopped at a checkpoint."""

    def __init__(self, work: Path) -> None:
        self.config = runs.write_run(work)
        self.base = self.config.parents[1] / "run"
        code, line = runs.train(self.config, self.base, runs.stop_at(runs.BASE))
        if code != 128 + signal.SIGTERM:
            raise SystemExit(f"the run to break did not stop as it should: code {code}, {line}")
        clean = runs.copy_run(self.base, "clean")
        code, line = runs.train(self.config, clean)
        if code:
            raise SystemExit(f"the run to compare with failed: code {code}, {line}")
        self.loss, self.clean = runs.held_out(clean), runs.final_weights(clean)
        self.rows: list[list[Any]] = []
        self.right = self.survived = 0

    def spike(self, name: str, expected: str, prepare: Callable[[Path], Callable[[], None] | None]) -> None:
        """A fault that must be seen as a spike, undone by a rewind, and explained."""
        run = runs.copy_run(self.base, f"run{len(self.rows)}")
        code, line = runs.train(self.config, run, prepare(run))
        rewinds, loss, events = runs.rewinds_of(run), runs.held_out(run), runs.spikes_of(run)
        first = min((event["step"] for event in events), default=None)
        kinds = dict.fromkeys(event["kind"] for event in events if event["step"] == first)
        seen = f"{', '.join(kinds)} at step {first}" if events else f"nothing: {line[:60]}"
        back = "; ".join(f"back to {one['to_step']}" for one in rewinds) or "update skipped"
        verdict = runs.autopsy_verdict(run) or "none"
        self._add(name, seen, back, code, loss, code == 0 and abs(loss - self.loss) < 0.15, verdict, expected)
        shutil.rmtree(run)

    def machine(
        self,
        name: str,
        words: str,
        prepare: Callable[[Path], Callable[[], None] | None],
        expected_code: int,
        *more: str,
        missing: Callable[[Path], Path] | None = None,
    ) -> None:
        """A fault of the machine: one line names it or nothing happens; started again, the run ends as if nothing had
        been."""
        run = runs.copy_run(self.base, f"run{len(self.rows)}")
        fault = prepare(run)
        if missing is None:
            code, line = runs.train(self.config, run, fault, *more)
        else:
            with runs.moved_away(missing(run)):
                code, line = runs.train(self.config, run, fault, *more)
        log = (run.parent / f"{run.name}.log").read_text(errors="replace")
        named = words in log and "Traceback" not in log
        again = code if code == 0 else runs.train(self.config, run, None, *more)[0]
        same = again == 0 and runs.final_weights(run) == self.clean
        what = "went on" if code == 0 else "stopped; went on when started again"
        said = (words or "nothing") if named else line[:60]
        self._add(name, said, what, code, runs.held_out(run), same and code == expected_code, said, words or "nothing")
        shutil.rmtree(run)

    def _add(
        self, name: str, seen: str, what: str, code: int, loss: float, good: bool, verdict: str, expected: str
    ) -> None:
        right = verdict == expected
        self.survived += good
        self.right += right
        end = "as if nothing had been" if good else "NO"
        self.rows.append([name, seen, what, code, f"{loss:.3f}", end, verdict, "yes" if right else f"NO ({expected})"])


def fault_table(work: Path, quick: bool) -> bool:
    """Puts every fault into a run."""
    begin = time.monotonic()
    faults = Faults(work / "faults")
    tokens = runs.LENGTH * runs.BATCH
    faults.spike("NaN batch", "bad data", runs.nan_batch)
    faults.spike("inf gradient", "numerics", lambda run: runs.infinite_gradient)
    for share in (4,) if quick else (1, 2, 4, 8):
        size = tokens * share // 8
        faults.spike(
            f"garbage documents, {size} of {tokens} tokens", "bad data", lambda run, n=size: runs.garbage(run, n)
        )
    step = runs.FAULT - 3
    faults.spike("LR x 30 for 5 steps", "learning rate", lambda run: runs.before_step(step, runs.raise_rate, 5))
    faults.spike("flipped exponent bit in a weight", "numerics", lambda run: runs.before_step(step, runs.flip_bit))
    faults.machine("disk full", "the disk is full", lambda run: runs.disk_full, 2)

    def truncate(run: Path) -> None:
        os.truncate(run / runs.STAGE / "checkpoints" / f"checkpoint-{runs.BASE}" / "model.safetensors", 1000)

    faults.machine("truncated checkpoint", "model.safetensors has 1000 bytes instead of", truncate, 0)
    shard = Path("1_corpus", "tokens", "train", "web", "00000.ds")
    faults.machine("missing shard", "00000.ds", lambda run: None, 2, missing=lambda run: run / shard)

    def older(run: Path) -> Callable[[], None]:
        os.utime(run / runs.STAGE / "checkpoints" / f"checkpoint-{runs.BASE}", (0, 0))
        return runs.clock_jumps

    faults.machine("clock jumps back a day", "", older, 0)
    workers = ("--go-on", "--set", "dataloader_num_workers=1")
    killed = runs.before_step(step, runs.kill_workers)
    faults.machine("data worker killed", "a data loader worker was killed", lambda run: killed, 2, *workers)
    heads = ["fault", "seen as", "what was done", "exit code", "held-out loss", "end", "verdict", "right"]
    table(f"Faults (held-out loss without any: {faults.loss:.3f})", heads, faults.rows)
    total = len(faults.rows)
    print(f"\n{faults.survived} of {total} survived, {faults.right} verdicts right; {time.monotonic() - begin:.0f} s")
    return faults.survived == total and faults.right >= total - 4


# ---- (c) the detector ----


def curves(steps: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Loss curves of published shapes. Noise is that of a batch mean: nearly normal, skewed to the right."""
    time_axis = np.arange(steps)

    def noise(std: float) -> np.ndarray:
        # A mean of some hundred skewed losses: a gamma variable of shape 1024 has skewness 1/16.
        return std * (generator.gamma(1024.0, 1.0, steps) - 1024.0) / 32.0

    power = 1.8 + 9.0 * (1.0 + time_axis) ** -0.35
    decay = np.where(time_axis < 0.8 * steps, 0.0, -0.25 * np.sqrt((time_axis / steps - 0.8).clip(0) / 0.2))
    stages = 0.15 * ((time_axis // (steps // 4)) % 2)  # another mixture: the level falls and rises by 0.15 nats
    wander = np.cumsum(generator.normal(0, 1e-4, steps))
    wander -= np.linspace(0, wander[-1], steps)
    return {
        "power law": power + noise(0.02),
        "power law, WSD decay": power + decay + noise(0.03),
        "steps between mixtures": power - stages + noise(0.05),
        "slow drift up and down": power + wander + 0.1 * np.sin(time_axis / 5000.0) + noise(0.03),
        "noise that shrinks": power + noise(1.0) * (0.02 + 0.03 * np.exp(-time_axis / 20000.0)),
    }


def detector_table(steps: int, seed: int) -> bool:
    """Runs the detector of the callback over the curves, as they are and with spikes put in."""
    generator, rows, good = np.random.default_rng(seed), [], True
    begin = time.monotonic()
    shapes = curves(steps // 5, generator)
    alarms_in_all = missed_in_all = accepted = 0
    for name, curve in shapes.items():
        detector = LossSpikeCallback().detector
        alarms = sum(detector.observe(value).is_spike for value in curve.tolist())
        # Above 0.5 nats: 300 spikes of 0.5 to 3 nats each curve, from step 128 on, at least 50 steps apart.
        count = min(300, len(curve) // 100)
        places = 128 + generator.permutation((len(curve) - 128) // 50)[:count] * 50
        spiked = curve.copy()
        spiked[places] += 0.5 + generator.exponential(0.4, count).clip(max=2.5)
        detector, marked = LossSpikeCallback().detector, set(places.tolist())
        missed = sum(
            not verdict.is_spike
            for place, value in enumerate(spiked[: max(marked) + 1].tolist())
            if (verdict := detector.observe(value)) is not None and place in marked
        )
        accepted += len(curve) - alarms
        alarms_in_all, missed_in_all = alarms_in_all + alarms, missed_in_all + missed
        rows.append([name, f"{len(curve) - alarms:,}", alarms, count, missed])
    good = alarms_in_all == 0 and missed_in_all == 0
    rows.append(["all", f"{accepted:,}", alarms_in_all, sum(row[3] for row in rows), missed_in_all])
    heads = ["curve", "accepted steps", "false alarms", "spikes of 0.5 nats and more", "missed"]
    table(f"Detector on synthetic curves ({time.monotonic() - begin:.0f} s)", heads, rows)
    heavy = 2.5 + 0.02 * generator.standard_t(5, steps // 5)
    detector = LossSpikeCallback().detector
    alarms = sum(detector.observe(value).is_spike for value in heavy.tolist())
    print(
        f"\nFor comparison, noise with heavy tails (Student t, 5 degrees, scale 0.02): {alarms} alarms in "
        f"{len(heavy):,} steps; no mean of many sequences looks like that."
    )
    return good


# ---- (d) cost ----


class Stopwatch:
    """Adds up what methods take."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inside = False

    def wrap(self, owner: Any, method: str, name: str) -> None:
        """Times a method of an object; what it calls that is timed too counts once."""
        original = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return original(*args, **kwargs)
            self._inside, begin = True, time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin
                self._inside = False

        setattr(owner, method, timed)


def make_costly(folder: Path, steps: int, **options: Any) -> Any:
    """The tiny recipe's model and batch with everything on that it has on."""
    from testing_utils import markov_documents

    from hf_pretrain.data.mixture import MixtureDataset
    from hf_pretrain.data.schedule import MixtureSchedule
    from hf_pretrain.data.token_source import TokenSource
    from hf_pretrain.models.strata.configuration_strata import StrataConfig
    from hf_pretrain.models.strata.modeling_strata import StrataForCausalLM
    from hf_pretrain.trainer.pretrain_config import PretrainConfig
    from hf_pretrain.trainer.pretrain_trainer import PretrainTrainer

    torch.manual_seed(0)
    model = StrataForCausalLM(StrataConfig.preset("tiny-moe", vocab_size=4096))
    tokens, ends = [], []
    for document in markov_documents(600, 4096, length=(50, 400)):
        tokens += document
        ends.append(len(tokens))
    source = TokenSource.from_arrays("text", tokens, ends, 4096, 0)
    dataset = MixtureDataset([source], MixtureSchedule.from_weights({"text": 1.0}, steps * 8), 256, max_epochs=1000)
    args = PretrainConfig(
        output_dir=str(folder),
        train_tokens=steps * 8 * 256,
        seq_length=256,
        global_batch_size=8,
        per_device_train_batch_size=8,
        use_cpu=True,
        max_epochs=1000.0,
        **options,
    )
    return PretrainTrainer(model, args, train_dataset=dataset)


def cost_table(work: Path, steps: int, rounds: int) -> bool:
    """Times the callbacks inside of a run, and saves both ways in turn."""
    run = make_costly(work / "cost", steps, save_strategy="no")
    watch = Stopwatch()
    for callback in run.callback_handler.callbacks:
        name = type(callback).__name__
        if name == "DefaultFlowCallback":
            continue
        for method in (
            "on_step_begin",
            "on_substep_end",
            "on_pre_optimizer_step",
            "on_optimizer_step",
            "on_step_end",
            "on_log",
            "_take_loss",
        ):
            if hasattr(callback, method):
                watch.wrap(callback, method, name)
    watch.wrap(run, "log", "log.jsonl")
    marks: list[tuple[float, float]] = []

    class Mark(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            marks.append((time.perf_counter(), sum(watch.seconds.values())))

    run.add_callback(Mark())
    run.train()
    # The first step pays for what is made once, and for the checks before it.
    whole, watched = marks[-1][0] - marks[0][0], marks[-1][1] - marks[0][1]
    share = watched / whole
    rows = [[name, f"{1e3 * spent / steps:.3f}"] for name, spent in sorted(watch.seconds.items(), key=lambda x: -x[1])]
    rows.append(["all, without the first step", f"{1e3 * watched / (steps - 1):.3f}"])
    table(
        f"Watching: {100 * share:.2f} % of a step of {1e3 * whole / (steps - 1):.0f} ms (tiny recipe)",
        ["what", "ms a step"],
        rows,
    )
    saver = make_costly(work / "saves", 4, save_strategy="steps", save_steps=4, save_total_limit=2)
    saver.train()
    ours, stock = [], []
    for number in range(rounds):
        for kind in ("ours", "stock") if number % 2 else ("stock", "ours"):
            saver.state.global_step += 1
            begin = time.perf_counter()
            if kind == "ours":
                saver._save_checkpoint(saver.model, None)
            else:
                transformers.Trainer._save_checkpoint(saver, saver.model, None)
            (ours if kind == "ours" else stock).append(time.perf_counter() - begin)
    ratio = statistics.median(ours) / statistics.median(stock)
    size = sum(item.stat().st_size for item in latest_complete_checkpoint(saver.args.output_dir).iterdir())
    heads = ["checkpoint of", "atomic, ms", "stock, ms", "ratio"]
    row = [f"{size / 1e6:.0f} MB", f"{1e3 * statistics.median(ours):.0f}", f"{1e3 * statistics.median(stock):.0f}"]
    table(f"Saving, median of {rounds}", heads, [[*row, f"{ratio:.2f}"]])
    return share < 0.02 and ratio <= 1.2


def main() -> int:
    """Prints the tables; 1 if a count is not what it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer kills, faults, steps and rounds")
    parser.add_argument("--part", nargs="+", choices=["kills", "faults", "detector", "cost"], help="only these")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    quick = options.quick
    outcome = {}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        parts: dict[str, Callable[[], bool]] = {
            # The processes that fork come first, before anything here may have started a thread.
            "kills": lambda: kill_table(work, 4 if quick else 20, options.seed),
            "faults": lambda: fault_table(work, quick),
            "detector": lambda: detector_table(100_000 if quick else 1_000_000 + 10_000, options.seed),
            "cost": lambda: cost_table(work, 12 if quick else 60, 3 if quick else 9),
        }
        for name in options.part or parts:
            outcome[name] = parts[name]()
    print(
        "\n"
        + ", ".join(
            f"{name}: {'as it should be' if good else 'NOT as it should be'}" for name, good in outcome.items()
        )
    )
    return 0 if all(outcome.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
