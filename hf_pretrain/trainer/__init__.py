"""Training: a configuration in tokens, a Trainer made exact, checkpoints that are complete or absent, stages that
follow on.

Read first `pretrain_config.py` (what can be set), then `pretrain_trainer.py` (what differs from transformers'
Trainer).

| file | duty |
|---|---|
| `pretrain_config.py` | `PretrainConfig(TrainingArguments)`: budgets in tokens, pretraining defaults, checks |
| `pretrain_trainer.py` | `PretrainTrainer(Trainer)`: order, schedule, held-out loss by tokens, records |
| `optimizing.py` | `optim: muon`, `stable_adamw`; `clipping: norm`, `zclip`, `adagc`; their state in checkpoints |
| `saving.py` | a checkpoint at once, or by a thread from a copy in host memory (`async_save`) |
| `launch_layout.py` | the sizes of a launch multiply to the processes; what a stage cannot run |
| `default_callbacks.py` | the callbacks a configuration asks for |
| `checkpoint.py` | atomic checkpoints with a manifest, the newest complete one, rotation |
| `resume_rules.py` | what a resumed run must share, what may change, a second warm-up |
| `data_state.py` | the place in the data, in samples, and how it goes on when the run changes |
| `loaders.py` | data loaders that start at any sample and use no random numbers |
| `run_log.py` | `log.jsonl` |
| `recovery.py` | back from a loss spike to a checkpoint, and on with other data; `rewind_journal.py` its record |
| `run_records.py` | what the trainer does at the loop's events |
| `run_lock.py`, `checkpoint_fit.py` | one writer a folder; a checkpoint is of this model |
| `dataset_keys.py` | `datasets` as TRL and the alignment handbook write it |
| `effective_data.py` | what repeated tokens are worth |
| `verdict.py` | what caused a spike, as a pure function of what was measured |
| `batch_probe.py` | a batch read again at given weights, without a trace in the model |
| `autopsy.py` | the autopsy put together; `autopsy_sources.py`: from a run or its folder |
| `autopsy_callback.py`, `autopsy_text.py` | one at each spike; as JSON and Markdown |
| `precision.py` | which number has which type in this run; bf16 weights only where asked for |
| `stages.py` | the model and the moments a stage starts from |

```python
from hf_pretrain.trainer.pretrain_config import PretrainConfig
from hf_pretrain.trainer.pretrain_trainer import PretrainTrainer

args = PretrainConfig(output_dir="out", train_tokens=1_000_000, seq_length=256, global_batch_size=32)
trainer = PretrainTrainer(model, args, train_dataset=mixture)
trainer.train()  # and after an interrupt: trainer.train(resume_from_checkpoint=True)
```

Optimizers. `optim: muon` trains every matrix of the blocks by Muon, each expert of a bank by itself, and the rest by
AdamW at the same rate. `clipping` bounds gradients by what is usual in the run. The logged norm is always the one
before, and what a clipping has learnt is in every checkpoint. Another optimizer, clipping or schedule at a resume is
an error unless `resume_changes` names it.

The end of a job. SIGTERM, SIGUSR1, Ctrl-C and `max_runtime` (`hf-pretrain pretrain --max-runtime 3h50m`) finish the
step, save a complete checkpoint and end with exit code 143, 138, 130 and 143; the same command goes on.

`async_save: true` (a key of the stage, an argument of `PretrainTrainer`) makes a save as long as a copy to host
memory. It needs room there for one more model and optimizer. An error of the thread stops the run at the next step,
and `train()` waits for the last file.

Spikes. `spike_action="rewind"` makes `train()` a loop: at a spike the update is dropped, everything is restored from
the newest complete checkpoint before it (one of the start is always made), and the samples from there through the
spike, or `rewind_skip_batches` if that is more, are left out for good. The same spike again goes further back, leaves
more out, then halves the learning rate; after three attempts, or `max_rewinds` in all, `train()` raises
`TrainingStopped` (exit code 3) with good checkpoints on disk. `rewinds.json` beside `data_order.json` says what was
done; it is written before anything else changes, so a run that is killed at any moment goes on from the checkpoint it
went back to, with the same samples left out. After `skip_update` weights, moments and the optimizer's step count are
bit by bit as before; the learning rate is a function of the step and moves on.

Autopsies. At each spike, while weights and batch are exactly those of the step, the batch is read again at these
weights and at the newest checkpoint's, in fp32 and in the run's precision, beside the batch before it;
`autopsies/step-N.md` and `.json` rank its documents, list gradient norms by layer and the routers, and give a verdict:
bad data (this batch alone is high), numerics (weights that no update made, high only in half precision, or a value
that does not come again), learning rate (above the schedule, or all batches are high now and were not before), or
unknown. `hf-pretrain autopsy RUN --step N` does the same from the folder and says which weights it found.

Precision. Weights, moments and sums over processes are fp32, products bf16 with `bf16: true`. A model whose weights
are half precision is refused; `pure_bf16: true` in a stage's file, or `PrecisionCallback(pure_bf16=True)`, asks for
it, and then the share of weights that the first update did not move is logged. `effect_checks: false`, or
`hf-pretrain pretrain --no-effect-checks`, leaves out the checks of `callbacks/effect_checks.py`.
"""
