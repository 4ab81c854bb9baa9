"""What an earlier stage read counts in rows of this one, whatever packing and length either has."""

import math

import pytest
from testing_utils import random_documents, write_token_folder

from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.order import DataOrder
from hf_pretrain.data.schedule import MixtureSchedule
from hf_pretrain.data.token_source import TokenSource
from hf_pretrain.trainer.stage_run import earlier_draws


@pytest.mark.parametrize("before", ["concat", "best_fit"])
@pytest.mark.parametrize("now", ["concat", "best_fit"])
@pytest.mark.parametrize("length", [16, 32])
def test_draws_are_converted_to_rows_of_this_stage(tmp_path, monkeypatch, before, now, length):
    monkeypatch.setenv("HF_PRETRAIN_CACHE", str(tmp_path / "cache"))
    source = TokenSource.open(write_token_folder(tmp_path / "web", "web", random_documents(60, seed=1)))
    schedule = MixtureSchedule.from_weights({"web": 1.0}, 20)
    stage = MixtureDataset([source], schedule, 16, packing=before, max_epochs=50)
    DataOrder.of(stage, 4).write(tmp_path / "stage")
    found = earlier_draws(tmp_path / "stage", [source], length, now)["web"]
    if before == now and length == 16:
        assert found == 20
    elif before == now == "concat":
        assert found == 10
    else:
        rows = MixtureDataset([source], schedule, length, packing=now, max_epochs=50).num_rows("web")
        assert found == math.ceil(20 / stage.num_rows("web") * rows - 1e-9)
    schedule = MixtureSchedule.from_weights({"web": 1.0}, 4, start_draws={"web": found})
    following = MixtureDataset([source], schedule, length, packing=now, max_epochs=50)
    if before == now and length == 16 and following.num_rows("web") >= 24:
        first, second = ({data.locate(i)[2] for i in range(len(data))} for data in (stage, following))
        assert not first & second
