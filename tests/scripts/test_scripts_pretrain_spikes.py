"""`hf-pretrain pretrain` and spikes: rewinds are in the facts, and a training that stops itself ends with code 3."""

import json

import pytest
from test_scripts_pretrain import MIXTURE, MODEL, facts, write_recipe

from hf_pretrain.callbacks.loss_spike import LossSpikeCallback
from hf_pretrain.scripts import pretrain, trace
from hf_pretrain.trainer.checkpoint import latest_complete_checkpoint
from hf_pretrain.utils.manifest import StepManifest


@pytest.fixture
def broken(monkeypatch):
    """Makes the loss of chosen steps NaN, counted over all rewinds."""
    read, seen = LossSpikeCallback._read_step, []

    def breaking(which):
        def read_step(self, *args):
            seen.append(1)
            loss, norm, top = read(self, *args)
            return (float("nan") if which(len(seen)) else loss), norm, top

        monkeypatch.setattr(LossSpikeCallback, "_read_step", read_step)

    return breaking


CONFIG = {"model": MODEL, "mixture": MIXTURE, "train_tokens": 12 * 256}


def test_a_rewind_is_in_facts_and_trace(tmp_path, broken, capsys):
    run, (path,) = write_recipe(tmp_path, s2_pretrain={**CONFIG, "spike_action": "rewind"})
    broken(lambda number: number == 7)
    assert pretrain.main(["--config", path]) == 0
    found = facts(run, "2_pretrain")
    (rewind,) = found["rewinds"]
    assert (rewind["spike_step"], rewind["to_step"], rewind["skipped"]) == (7, 4, [32, 56])
    assert found["spikes"][0]["value"] == "nan" and found["spikes"][0]["action"] == "rewind"
    assert found["data"]["skipped_samples"] == 24
    capsys.readouterr()
    assert trace.main([str(run), "--step", "5", "--json"]) == 0
    assert [row["sample_index"] for row in json.loads(capsys.readouterr().out)["rows"]] == list(range(56, 64))


@pytest.mark.parametrize("action", ["rewind", "stop"])
def test_a_training_that_stops_itself_ends_with_code_3(tmp_path, broken, capsys, action):
    run, (path,) = write_recipe(tmp_path, s2_pretrain={**CONFIG, "spike_action": action})
    broken(lambda number: number >= 7)
    assert pretrain.main(["--config", path]) == 3
    error = capsys.readouterr().err.strip().splitlines()[-1]
    good = latest_complete_checkpoint(run / "2_pretrain" / "checkpoints")
    assert error.startswith("stopped: training stop") and error.endswith(f"the last good checkpoint is {good}")
    assert StepManifest.load(run / "2_pretrain" / "stage.json").status != "done"
    assert not (run / "2_pretrain" / "model").exists()


def test_bad_rewind_options_are_one_line(tmp_path, capsys):
    _, (path,) = write_recipe(tmp_path, s2_pretrain={**CONFIG, "spike_action": "rewind", "rewind_lr_factor": 2})
    assert pretrain.main(["--config", path]) == 2
    assert "rewind_lr_factor = 2.0; allowed is above 0 up to 1" in capsys.readouterr().err
