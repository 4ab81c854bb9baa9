"""Our own code for what the mixins import and the archive lacks: process starters, and checks of `generate`.

The names are those the mixins ask for. `GenerationTesterMixin` here holds our checks of generation, not theirs, which
are not in the archive.
"""

import copy
import multiprocessing
import os
import socket
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


class ExportTesterMixin:
    """The archive has no checks of exporters."""


class GenerationTesterMixin:
    """What `generate` must do for every class that can, on the tester's tiny model."""

    def _generators(self):
        config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
        for model_class in self.all_generative_model_classes:
            torch.manual_seed(0)
            model = model_class(copy.deepcopy(config)).eval()
            model.generation_config.eos_token_id = None
            model.generation_config.pad_token_id = 0
            yield model, inputs["input_ids"].clamp(min=1)

    def test_generate_with_and_without_cache(self):
        for model, ids in self._generators():
            for options in ({}, {"num_beams": 3}):
                arguments = {"do_sample": False, "max_new_tokens": 6, **options}
                cached = model.generate(ids, use_cache=True, **arguments)
                plain = model.generate(ids, use_cache=False, **arguments)
                self.assertEqual(tuple(cached.shape), (ids.shape[0], ids.shape[1] + 6))
                self.assertTrue(torch.equal(cached, plain), f"{options}: the cache changes what is generated")

    def test_generate_scores_are_the_logits_of_forward(self):
        for model, ids in self._generators():
            arguments = {"do_sample": False, "max_new_tokens": 4, "output_logits": True}
            output = model.generate(ids, return_dict_in_generate=True, **arguments)
            logits = model(output.sequences[:, :-1], use_cache=False).logits[:, ids.shape[1] - 1 :]
            torch.testing.assert_close(torch.stack(output.logits, dim=1), logits, atol=1e-5, rtol=1e-5)

    def test_generate_from_embeddings(self):
        for model, ids in self._generators():
            embeddings = model.get_input_embeddings()(ids)
            arguments = {"do_sample": False, "max_new_tokens": 5}
            expected = model.generate(ids, **arguments)[:, ids.shape[1] :]
            self.assertTrue(torch.equal(model.generate(inputs_embeds=embeddings, **arguments), expected))

    def test_generate_left_padded(self):
        for model, ids in self._generators():
            padding = torch.zeros(ids.shape[0], 3, dtype=ids.dtype)
            mask = torch.cat((padding, torch.ones_like(ids)), dim=1)
            arguments = {"do_sample": False, "max_new_tokens": 5}
            padded = model.generate(torch.cat((padding, ids), dim=1), attention_mask=mask, **arguments)
            self.assertTrue(torch.equal(padded[:, 3:], model.generate(ids, **arguments)))

    def test_generate_continues_a_cache(self):
        for model, ids in self._generators():
            arguments = {"do_sample": False, "return_dict_in_generate": True}
            whole = model.generate(ids, max_new_tokens=6, **arguments).sequences
            first = model.generate(ids, max_new_tokens=2, **arguments)
            second = model.generate(first.sequences, cache=first.cache, max_new_tokens=4, **arguments)
            self.assertTrue(torch.equal(second.sequences, whole))

    def test_generate_static_cache_and_prompt_lookup(self):
        for model, ids in self._generators():
            arguments = {"do_sample": False, "max_new_tokens": 6}
            expected = model.generate(ids[:1], **arguments)
            static = model.generate(ids[:1], cache_implementation="static", disable_compile=True, **arguments)
            self.assertTrue(torch.equal(static, expected))
            assisted = model.generate(ids[:1], prompt_lookup_num_tokens=2, **arguments)
            self.assertTrue(torch.equal(assisted, expected))

    def test_generate_samples_by_the_seed(self):
        for model, ids in self._generators():
            drawn = []
            for seed in (3, 3, 4):
                torch.manual_seed(seed)
                drawn.append(model.generate(ids, do_sample=True, max_new_tokens=8, temperature=1.0, top_k=0))
            self.assertTrue(torch.equal(drawn[0], drawn[1]))
            self.assertFalse(torch.equal(drawn[0], drawn[2]))


def _get_distributed_device_type() -> str:
    return "cpu"


def _get_distributed_backend() -> str:
    return "gloo"


def _get_rank_device(rank: int) -> torch.device:
    return torch.device("cpu")


def _set_rank_device(rank: int) -> None:
    """CPU processes have no device to choose."""


def _start_rank_processes(function: Callable, args: tuple, nprocs: int) -> None:
    """Runs `function(rank, *args)` in fresh processes; the first error of one is raised here."""
    # The server has loaded torch once; each rank is a fork of it, which saves most of the time of these checks.
    multiprocessing.set_forkserver_preload(
        ["torch.distributed.tensor", "hf_pretrain.models", "transformers.distributed"]
    )
    mp.start_processes(function, args=args, nprocs=nprocs, join=True, start_method="forkserver")


def _run_rank(rank: int, function: Callable, args: tuple, world_size: int, port: int) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(world_size),
        MASTER_ADDR="localhost",
        MASTER_PORT=str(port),
    )
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    try:
        function(rank, *args)
    finally:
        dist.destroy_process_group()


def run_distributed(world_size: int) -> Callable:
    """A function that runs another in `world_size` processes joined by gloo: `run_distributed(2)(f)(*args)`."""

    def starter(function: Callable) -> Callable:
        def start(*args: Any) -> None:
            with socket.socket() as free:
                free.bind(("localhost", 0))
                port = free.getsockname()[1]
            _start_rank_processes(_run_rank, (function, args, world_size, port), world_size)

        return start

    return starter


__all__ = [
    "ExportTesterMixin",
    "GenerationTesterMixin",
    "_get_distributed_backend",
    "_get_distributed_device_type",
    "_get_rank_device",
    "_set_rank_device",
    "_start_rank_processes",
    "run_distributed",
]
