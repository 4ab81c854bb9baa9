"""The room of `TrainerCallback`s: one file, one callback. All work in a stock `transformers.Trainer`.

- `z_loss.py`: `ZLossCallback(coef=1e-4)`: z-loss on any causal LM; logs `ce_loss`, `z_loss`, `lse_mean`, `lse_max`.
- `loss_spike.py`: `LossSpikeCallback(action="log" | "skip_update" | "stop")`: loss, gradient norm, largest logsumexp
  (with `ZLossCallback`); the arithmetic is in `detector.py`. Going back is `PretrainTrainer`'s: `trainer/recovery.py`.
- `effect_checks.py`: `EffectChecksCallback()`: every switch proves itself before the first update, or it is an error.
- `router_health.py`: `RouterHealthCallback()`: load, entropy, dead experts of Strata, with a collapse alarm.
- `fused_kernels.py`: `FusedKernelsCallback()`: Liger's kernels while training, with a report.
- `throughput.py`: `ThroughputCallback()`: tokens per second, MFU with its convention, goodput and what it lost.
- `annealing_mix.py`: `AnnealingMixCallback(...)`: moves the mixture when the learning rate decays.
- `data_ledger.py`: `DataLedgerCallback()`: tokens and epochs per source.
- `preemption.py`: `PreemptionCallback()`: a signal, or the end of `max_runtime`, saves and stops cleanly.
- `progress.py`: `TrainingProgressCallback()`: progress on a terminal or in a log.

What they share: constructors take JSON scalars and refuse bad values at once; they bind in `on_train_begin`, undo what
they changed in `on_train_end`, decide alike on all processes, and add numbers to the log line under constant keys
(`log_lines.py`). Those with a `state()` are restored by `restore_callback_states_from_checkpoint=True`. Read
`z_loss.py` first: it is the shortest that does all of this.

    from transformers import Trainer, TrainingArguments

    from hf_pretrain.callbacks.loss_spike import LossSpikeCallback
    from hf_pretrain.callbacks.z_loss import ZLossCallback

    arguments = TrainingArguments(output_dir="out", max_steps=100, logging_steps=10)
    callbacks = [ZLossCallback(coef=1e-4), LossSpikeCallback(action="skip_update")]
    Trainer(model, arguments, train_dataset=dataset, callbacks=callbacks).train()
"""
