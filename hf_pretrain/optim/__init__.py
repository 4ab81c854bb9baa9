"""The room of optimizers: which rate at which update, which parameters decay, what clips. Read `schedules.py` first.

- `schedules.py`: `multiplier(t, ...)`, the pure function; `lr_lambda(...)`, the same for torch's `LambdaLR`.
- `param_groups.py`: `parameter_groups(model, weight_decay)`, no decay on vectors, biases and embeddings.
- `muon.py`: `MuonWithAdamW`, torch's Muon for matrices, the same for each expert of a bank, AdamW for the rest.
- `stable_adamw.py`: `StableAdamW`, AdamW that shrinks an update its second moment did not expect.
- `clipping.py`: `ZClipStatistics` (global norm) and `AdaGC` (norm of each parameter), as arithmetic on norms.

    from torch.optim import AdamW
    from torch.optim.lr_scheduler import LambdaLR

    from hf_pretrain.optim.param_groups import parameter_groups
    from hf_pretrain.optim.schedules import lr_lambda

    optimizer = AdamW(parameter_groups(model, weight_decay=0.1), lr=3e-4, betas=(0.9, 0.95))
    scheduler = LambdaLR(optimizer, lr_lambda("wsd", 1000, num_warmup_steps=100, num_decay_steps=200))
"""
