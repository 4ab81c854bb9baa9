"""Faults that are a function of the data: a batch that holds a chosen sample gets another loss."""

import math

from tiny_training import BATCH, tiny_llama, tiny_mixture, trainer


def faulty_model(dataset, samples, extra=5.0, model=None, within=None):
    """A model whose loss rises by `extra` in a batch that holds one of the samples.

    Args:
        dataset: The mixture, with nothing left out yet.
        samples: Numbers of the samples.
        extra: Added to the loss.
        model: A tiny Llama by default.
        within: Called before each fault; only where it says yes there is one.
    """
    model = model or tiny_llama()
    rows = {tuple(dataset[sample]["input_ids"].tolist()) for sample in samples}

    def fault(module, args, kwargs, output):
        ids = kwargs["input_ids"]
        if module.training and any(tuple(row) in rows for row in ids.tolist()) and (within is None or within()):
            output.loss = output.loss * extra if math.isnan(extra) else output.loss + extra
        return output

    model.register_forward_hook(fault, with_kwargs=True)
    return model


def rewinding(folder, samples, steps=24, extra=5.0, within=None, **options):
    """A trainer that rewinds, on data with faults at the samples; they are the first of their batches."""
    dataset = tiny_mixture(steps)
    model = faulty_model(dataset, samples, extra, options.pop("model", None), within)
    defaults = {"spike_action": "rewind", "save_strategy": "steps", "save_steps": 6, "train_dataset": dataset}
    return trainer(folder, model, steps=steps, **{**defaults, **options})


def samples_of_steps(*steps):
    return [(step - 1) * BATCH for step in steps]
