"""The room of fused kernels on models that exist. Read `liger_patch.py` first, then `liger_table.py`.

`patch_with_liger(model)` replaces RoPE, RMSNorm and SwiGLU by Liger's kernels where a self-check shows equal numbers,
and returns a `PatchReport` of what was patched, what was not and why; `report.undo()` is the way back. On a machine
without an accelerator nothing is patched and the report says so. The fused cross-entropy is in the room `losses`;
`liger_table.install_fused_forward(model)` takes Liger's forward for it on stock families, on any device.

`TrainingArguments(use_liger_kernel=True)` acts on Strata once it is in Liger's table; our callbacks see to that, a
stock `Trainer` without them needs one line, and takes z-loss from `liger_kernel_config={"lse_square_scale": 1e-4}`.
Evaluation builds no logits either, unless there is a `compute_metrics`:

    from hf_pretrain.kernels.liger_table import register_strata

    register_strata()

Patching by hand:

    from hf_pretrain.kernels.liger_patch import patch_with_liger

    report = patch_with_liger(model.cuda())
    print(report)                  # rope: patched (...); rms_norm: patched (9 modules); swiglu: patched (4 modules)
    report.undo()
"""
