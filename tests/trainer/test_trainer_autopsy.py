"""The autopsy names the cause, the documents and the weights it used, live and from the folder."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
from tiny_run import write_source
from tiny_text_models import SAMPLE, byte_level_tokenizer
from tiny_training import BATCH, LENGTH, arguments, tiny_llama, tiny_mixture, tiny_strata
from transformers import TrainerCallback

from hf_pretrain.callbacks.loss_spike import LossSpikeCallback
from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.schedule import MixtureSchedule
from hf_pretrain.data.token_source import TokenSource
from hf_pretrain.trainer.autopsy import Batch, rank_documents, take_batch
from hf_pretrain.trainer.autopsy_callback import AutopsyCallback
from hf_pretrain.trainer.autopsy_sources import autopsy_folder, recorded_spikes
from hf_pretrain.trainer.autopsy_text import autopsy_markdown, escape_markdown, write_autopsy
from hf_pretrain.trainer.pretrain_trainer import PretrainTrainer
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.facts import Facts


STEPS, SPIKE = 30, 24


class Garbage(MixtureDataset):
    """Random tokens in the rows of one step."""

    def __getitem__(self, index):
        return self._spoil(super().__getitem__(index))

    def __getitems__(self, indices):
        return [self[index] for index in indices]

    def _spoil(self, row):
        if row["sample_index"] // BATCH == SPIKE - 1:
            generator = torch.Generator().manual_seed(row["sample_index"])
            ids = torch.randint(0, 64, (LENGTH,), generator=generator)
            row["input_ids"] = ids
            row["labels"] = torch.where(row["labels"] == -100, row["labels"], ids)
        return row


def run_with(folder, dataset=None, model=None, callbacks=(), **options):
    mixture = dataset or tiny_mixture(STEPS)
    spikes = LossSpikeCallback("log", min_values=8, min_rise=0.2, threshold=4.0)
    defaults = {"learning_rate": 3e-3, "save_strategy": "steps", "save_steps": 20, "schedule": "constant"}
    args = arguments(folder, STEPS, record_dir=str(folder), **{**defaults, **options})
    args.output_dir = str(folder / "checkpoints")
    run = PretrainTrainer(
        model or tiny_llama(num_hidden_layers=2), args, train_dataset=mixture, callbacks=[spikes, *callbacks]
    )
    run.train()
    return run


def report_of(folder, step=SPIKE):
    return json.loads((folder / "autopsies" / f"step-{step}.json").read_text())


def garbage():
    plain = tiny_mixture(STEPS)
    return Garbage(plain.sources, plain.schedule, LENGTH, 1, max_epochs=100)


@pytest.fixture(scope="module")
def garbage_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("garbage")
    run_with(folder, garbage(), tiny_strata(), save_steps=10, save_total_limit=5)
    return folder


def test_garbage_is_bad_data_and_its_documents_are_ranked(garbage_run):
    report = report_of(garbage_run)
    assert report["verdict"]["kind"] == "bad data"
    assert report["weights"]["current"] == {"name": "those in memory", "step": SPIKE - 1, "exact": True}
    assert report["weights"]["previous"] == {"name": "checkpoint-20", "step": 20, "exact": False}
    losses = [one["loss"] for one in report["evaluations"]]
    references = [one["reference_loss"] for one in report["evaluations"]]
    assert [one["weights"] for one in report["evaluations"]] == ["previous", "current"]
    assert min(losses) > max(references) + 0.2
    shares = [one["excess_share"] for one in report["documents"]]
    assert shares == sorted(shares, reverse=True) and sum(shares) == pytest.approx(1.0)
    assert {one["source"] for one in report["documents"]} <= {"a", "b"}
    assert report["batch"]["samples"] == list(range((SPIKE - 1) * BATCH, SPIKE * BATCH))
    assert set(report["gradient_norms"]) == {"previous", "current", "step"}
    assert set(report["gradient_norms"]["step"]) >= {"embedding", "layer 0", "layer 1", "norm"}
    # The step's own gradients come again, but for the router terms and the z-loss.
    again, own = report["gradient_norms"]["current"]["layer 0"], report["gradient_norms"]["step"]["layer 0"]
    assert again == pytest.approx(own, rel=0.1)
    assert len(report["routers"]["current"]) == 2
    assert report["learning_rate"]["used"] == report["learning_rate"]["planned"] == 3e-3
    assert (garbage_run / "autopsies" / f"step-{SPIKE}.md").read_text().startswith(f"# Step {SPIKE}: bad data")


def test_a_rate_above_the_schedule_is_named(tmp_path):
    class TooFast(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if SPIKE - 4 <= state.global_step + 1 <= SPIKE + 2:
                for group in kwargs["optimizer"].param_groups:
                    group["lr"] = 0.3

    run = run_with(tmp_path, callbacks=[TooFast()])
    found = run.find_callback(AutopsyCallback).written
    assert found and set(found.values()) == {"learning rate"}


def test_a_flipped_bit_is_numerics(tmp_path):
    class Flip(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step + 1 == SPIKE:
                weight = kwargs["model"].model.layers[0].self_attn.o_proj.weight
                with torch.no_grad():
                    flat = weight.view(-1)
                    flat[5] = (flat[5:6].view(torch.int32) ^ (1 << 30)).view(torch.float32)[0]

    run_with(tmp_path, callbacks=[Flip()])
    report = report_of(tmp_path)
    assert report["verdict"]["kind"] == "numerics"
    assert report["weights_compared"]["moved_too_far"] == 1 or report["weights_compared"]["not_finite"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_does_not_come_again_is_numerics(tmp_path, value):
    class Break(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step + 1 == SPIKE:
                weight = kwargs["model"].model.layers[1].self_attn.o_proj.weight

                def spoil(gradient):
                    handle.remove()
                    return torch.full_like(gradient, value)

                handle = weight.register_hook(spoil)

    run_with(tmp_path, callbacks=[Break()])
    report = report_of(tmp_path)
    assert report["verdict"]["kind"] == "numerics"
    assert report["gradient_norms"]["step"]["layer 1"] in ("nan", "inf")
    assert all(isinstance(one["loss"], float) for one in report["evaluations"])


def test_bf16_runs_are_read_in_both_precisions(tmp_path):
    run_with(tmp_path, garbage(), bf16=True)
    report = report_of(tmp_path)
    assert {one["precision"] for one in report["evaluations"]} == {"float32", "bfloat16"}
    assert report["precision"] == "bfloat16" and report["verdict"]["kind"] == "bad data"


def test_without_a_checkpoint_the_autopsy_says_so(tmp_path):
    run_with(tmp_path, garbage(), save_strategy="no")
    report = report_of(tmp_path)
    assert "previous" not in report["weights"] and "no complete checkpoint before" in report["notes"][0]
    assert report["verdict"]["kind"] == "bad data"


def test_the_number_of_autopsies_is_limited(tmp_path):
    run = run_with(tmp_path, garbage(), callbacks=[AutopsyCallback(limit=0)])
    assert run.find_callback(LossSpikeCallback).num_spikes >= 1
    assert not (tmp_path / "autopsies").exists()


def test_an_autopsy_that_cannot_be_written_ends_no_run(tmp_path, caplog):
    (tmp_path / "autopsies").write_text("in the way")
    run = run_with(tmp_path, garbage())
    assert run.state.global_step == STEPS
    assert f"No autopsy of step {SPIKE}" in caplog.text


# ---- from a folder ----


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    tokenizer = byte_level_tokenizer()
    texts = [f"{SAMPLE[number % len(SAMPLE)]} {number}" for number in range(60)]
    write_source(folder / "1_corpus" / "tokens" / "web", "web", texts, tokenizer)
    source = TokenSource.open(folder / "1_corpus" / "tokens" / "web")
    schedule = MixtureSchedule.from_weights({"web": 1.0}, STEPS * BATCH)
    mixture = MixtureDataset([source], schedule, LENGTH, 1, max_epochs=100)
    stage = folder / "2_pretrain"
    model = tiny_llama()
    model.resize_token_embeddings(len(tokenizer))
    run = run_with(stage, mixture, model, save_steps=10, save_total_limit=5)
    run.save_model(str(stage / "model"))
    return folder


def test_a_folder_copied_elsewhere_gives_the_same_autopsy(on_disk, tmp_path):
    first = autopsy_folder(on_disk / "2_pretrain", 21)
    shutil.copytree(on_disk, tmp_path / "elsewhere")
    assert autopsy_folder(tmp_path / "elsewhere" / "2_pretrain", 21) == first
    assert first["weights"]["current"] == {"name": "checkpoint-20", "step": 20, "exact": True}
    assert first["weights"]["previous"]["name"] == "checkpoint-10"
    assert first["verdict"]["kind"] == "unknown"  # an ordinary step
    assert first["learning_rate"]["used"] == first["learning_rate"]["planned"]
    assert first["weights_compared"]["moved_too_far"] == 0
    assert first["batch"]["sequences"] == BATCH and len(first["documents"]) > 1


def test_where_the_weights_are_not_kept_the_autopsy_says_which_it_used(on_disk):
    report = autopsy_folder(on_disk / "2_pretrain", 25)
    assert report["weights"]["current"] == {"name": "checkpoint-30", "step": 30, "exact": False}
    assert report["weights"]["previous"]["step"] == 20
    assert "the weights that step 25 was made with are not kept" in report["notes"][0]
    early = autopsy_folder(on_disk / "2_pretrain", 3)
    assert "previous" not in early["weights"] and early["weights"]["current"]["step"] == 10


def test_a_step_that_is_not_of_the_run_is_one_line(on_disk, tmp_path):
    with pytest.raises(UserError, match="--step 40; this run made 30 steps"):
        autopsy_folder(on_disk / "2_pretrain", 40)
    with pytest.raises(UserError, match="steps count from 1"):
        autopsy_folder(on_disk / "2_pretrain", 0)
    shutil.copytree(on_disk, tmp_path / "bare", ignore=shutil.ignore_patterns("checkpoints", "model"))
    with pytest.raises(UserError, match="neither a complete checkpoint nor a model"):
        autopsy_folder(tmp_path / "bare" / "2_pretrain", 5)


def test_the_samples_the_run_recorded_win_over_the_order(on_disk, tmp_path):
    # After a rewind the order gives the step other samples than those that made the spike.
    shutil.copytree(on_disk, tmp_path / "run")
    stage = tmp_path / "run" / "2_pretrain"
    report = autopsy_folder(stage, 21)
    write_autopsy(stage, report)
    order = json.loads((stage / "data_order.json").read_text())
    order["skipped"] = [[20 * BATCH, 22 * BATCH]]
    (stage / "data_order.json").write_text(json.dumps(order))
    assert autopsy_folder(stage, 21)["batch"]["samples"] == report["batch"]["samples"]


def test_spikes_are_found_wherever_they_were_recorded(garbage_run, tmp_path):
    stage = tmp_path / "2_pretrain"
    shutil.copytree(garbage_run, stage)
    assert SPIKE in recorded_spikes(stage)
    shutil.rmtree(stage / "autopsies")
    events = recorded_spikes(stage)[SPIKE]  # of the checkpoints
    shutil.rmtree(stage / "checkpoints")
    assert recorded_spikes(stage) == {}
    Facts(tmp_path).record_stage("2_pretrain", "pretrain", {"spikes": events})
    assert recorded_spikes(stage) == {SPIKE: events}


# ---- parts ----


def test_documents_are_ranked_by_what_they_lose_above_the_usual():
    row = {"labels": torch.tensor([-100, 1, 1, -100, 1, 1])}
    batch = Batch([row], [7], [[(0, 3, "web", "good", None), (3, 6, "web", "bad", "http://x")]], 1)
    ranked = rank_documents(batch, torch.tensor([[9.0, 1.0, 1.0, 9.0, 5.0, 3.0]]), reference=1.5)
    assert [(one.document, one.loss, one.num_tokens, one.excess_share) for one in ranked] == [
        ("bad", 4.0, 2, 1.0),
        ("good", 1.0, 2, 0.0),
    ]
    broken = rank_documents(batch, torch.tensor([[9.0, 1.0, 1.0, 9.0, np.nan, 3.0]]), reference=1.5)
    assert broken[0].document == "bad" and broken[0].excess_share == 1.0


def test_of_a_large_batch_rows_are_read_evenly():
    mixture = tiny_mixture(4)
    assert take_batch(mixture, range(0, 32), 4).samples == [0, 8, 16, 24]
    assert take_batch(mixture, range(8, 16), 64).samples == list(range(8, 16))


def test_text_of_the_web_stays_text():
    text = "a|b\n# <script>`x`</script> [y](http://z) \x1b[31m *c*"
    escaped = escape_markdown(text)
    assert "\n" not in escaped and "\x1b" not in escaped
    assert "<" not in escaped and "[y](" not in escaped and "\\|" in escaped


def test_markdown_of_a_hostile_document_has_no_markup(garbage_run):
    report = report_of(garbage_run)
    report["documents"][0] |= {"document": "x|y", "url": "javascript:<img src=x>", "text": "```\n# hi"}
    rows = [line for line in autopsy_markdown(report).splitlines() if line.startswith("| 1 | ")]
    assert "<" not in rows[0] and "x\\|y" in rows[0] and "\n# hi" not in autopsy_markdown(report)
