"""Data loaders that keep the global order: from any sample on, without using up random numbers.

A torch `DataLoader` draws a seed from the global generator whenever an iterator is made, which would shift dropout
after a resume; here each loader has a generator of its own.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from hf_pretrain.data.streaming import StreamingMixture


class SampleRange(Sampler[int]):
    """The samples `start`, `start + 1`, ... of a dataset.

    Args:
        size (`int`): Samples of the whole dataset. This is also the length reported, from which the Trainer computes
            the steps of the run.
        start (`int`, *optional*, defaults to 0): First sample read.
    """

    def __init__(self, size: int, start: int = 0) -> None:
        self.size = size
        self.start = start

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.size))

    def __len__(self) -> int:
        return self.size


class RankSlice(Dataset):
    """The rows of a held-out dataset that one process scores, as many on each process.

    Args:
        dataset (`Dataset`): The whole dataset.
        rank (`int`): This process.
        world_size (`int`): Number of processes. Where the rows do not divide, the last ones are repeated with all
            labels -100, so that processes make equally many forward passes and no row counts twice.
    """

    def __init__(self, dataset: Any, rank: int, world_size: int) -> None:
        self.dataset = dataset
        self.rank = rank
        self.world_size = world_size

    def __len__(self) -> int:
        return -(-len(self.dataset) // self.world_size)

    def __getitem__(self, index: int) -> dict[str, Any]:
        place = index * self.world_size + self.rank
        if place < len(self.dataset):
            return self.dataset[place]
        filler = dict(self.dataset[0])
        filler["labels"] = torch.full_like(torch.as_tensor(filler["labels"]), -100)
        return filler


def make_loader(dataset: Any, seed: int, **options: Any) -> DataLoader:
    """Makes a loader that leaves the global random generator alone.

    Args:
        dataset (`Dataset`): The dataset.
        seed (`int`): Seed of the loader's own generator.
        **options: Other arguments of `DataLoader`.

    Returns:
        `DataLoader`: The loader.
    """
    return DataLoader(dataset, generator=torch.Generator().manual_seed(seed), **options)


def sampler_of(dataset: Any, start: int) -> SampleRange | None:
    """Makes the sampler of training data.

    Args:
        dataset (`MixtureDataset` or `StreamingMixture`): The training data.
        start (`int`): First sample read.

    Returns:
        `SampleRange`: The samples from there on; `None` for a stream, which knows where it stands.
    """
    return None if isinstance(dataset, StreamingMixture) else SampleRange(len(dataset), start)


def prepare_loader(loader: DataLoader, accelerator: Any) -> Any:
    """Gives each process its part of every global batch.

    One process reads a stream and hands micro-batches out, unless accelerate is told otherwise
    (`dispatch_batches=False`): then each reads everything, and takes its own of every round of micro-batches.

    Args:
        loader (`DataLoader`): Of [`make_loader`].
        accelerator (`Accelerator`): The Trainer's.

    Returns:
        `DataLoader`: Prepared by accelerate.
    """
    if isinstance(loader.dataset, StreamingMixture):
        together = accelerator.num_processes if accelerator.dispatch_batches is False else 1
        loader.dataset.block_size = (loader.batch_size or 1) * together
    prepared = accelerator.prepare(loader)
    # A loader that hands batches out comes back without the generator.
    getattr(prepared, "base_dataloader", prepared).generator = loader.generator
    return prepared
