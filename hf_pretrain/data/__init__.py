"""The data order as a function: sample `i` of a run is `f(seed, schedule, i)`, with no state to save.

Read first `schedule.py` (which source sample `i` is drawn from), then `mixture.py` (the dataset), then `trace.py` (the
way back, from a step to its documents).

| file | duty |
|---|---|
| `token_source.py` | a folder of token shards or a `datasets.Dataset`, memory-mapped: windows, documents, provenance |
| `shards.py`, `arrow_shards.py` | the pieces of a source: mapped files, chunks of an Arrow table |
| `packing.py`, `best_fit.py` | rows of packed documents: fixed windows, or documents whole; labels, positions |
| `weights.py` | temperature and UniMax weights, a mix against published shares |
| `phases.py`, `placement.py` | phases as a recipe writes them; where the draws of each source fall |
| `permutation.py` | a seeded bijection on `[0, n)` in constant memory: another window order in every epoch |
| `schedule.py` | phases, ramps, weights, repeat caps; `locate(i)` gives the source and the number of the draw |
| `repeats.py` | how many epochs of each source a run takes, and the cap on it |
| `mixture.py` | `MixtureDataset`, map-style, `__getitem__(i)` pure: any worker, rank, restart gives the same sample |
| `streaming.py` | `StreamingMixture`, the same schedule over what cannot be mapped, with `state_dict` |
| `order_guard.py` | changes of the mix that are worth a control run in no order |
| `collator.py` | batches with `position_ids` and no attention mask, so that packed documents never see each other |
| `packed_guard.py` | packed documents stay apart in any model, also with an all-ones mask or a cache |
| `skips.py` | samples a run leaves out: position to sample and back |
| `continuation.py` | a run that becomes longer or changes its mix on the way |
| `order.py` | `data_order.json`: all that is needed to build the dataset again |
| `trace.py` | a step to its samples, a sample to its documents, ids and URLs |
| `lookup.py` | a document to the steps that read it |

```python
from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.schedule import MixtureSchedule
from hf_pretrain.data.token_source import TokenSource

sources = [TokenSource.from_arrays("a", range(1000), [400, 1000]), TokenSource.from_arrays("b", range(500), [500])]
schedule = MixtureSchedule.from_weights({"a": 0.7, "b": 0.3}, num_samples=20)
dataset = MixtureDataset(sources, schedule, seq_length=64, seed=0)
dataset[3]["source_index"], dataset[3]["input_ids"].shape
```

In a stock `Trainer` the order holds with `train_sampling_strategy="sequential"`, and documents stay apart with the
collator and the guard:

    Trainer(model, args, train_dataset=dataset, data_collator=PretrainDataCollator(),
            callbacks=[PackedDocumentsCallback()])

Data that cannot be mapped (a stream from elsewhere, tokenised on the way) goes through `StreamingMixture`: the same
schedule and rows, windows in the stream's own order, exact resume. It cannot jump: without a `state_dict` of the
stream a resume reads up to where it stands, and with worker processes it always does.

    StreamingMixture({"web": iterable_dataset, "code": other}, schedule, seq_length=2048)

Order of a run: optimizer step `s` (the update that makes `global_step == s`) holds the samples `[(s - 1) * B, s * B)`,
where `B` is the global batch in sequences, whatever micro-batch, accumulation and world size it is cut into.

Leaving samples out (going back from a spike and on with other data): what is recorded is
`skipped: [[start, stop], ...]`, ranges of sample numbers, in `data_order.json` and in every checkpoint's manifest. A
step then holds the *positions* `[(s - 1) * B, s * B)`; `Skips.sample_at(position)` is the sample, and
`Skips.position_of(sample)` the way back (`None` for one left out). To leave out the samples of steps `first` to
`last`, on every process alike and before the next `train()`:

    order = DataOrder.read(record_dir)
    start, stop = order.samples_of_step(first)[0], order.samples_of_step(last)[-1] + 1
    trainer.train_dataset.skips = trainer.train_dataset.skips.with_range(start, stop)
    trainer.train(checkpoint)  # made at or before step `first - 1`

The trainer joins the dataset's ranges with those of the checkpoint and of `data_order.json`, so a later resume leaves
out the same, and refuses ranges that reach into samples the checkpoint was trained on. `spike_action: rewind` does all
of this by itself (`trainer/recovery.py`).
"""
