"""The room of fused kernels on models that exist. One file: `liger_patch.py`.

`patch_with_liger(model)` replaces RoPE, RMSNorm and SwiGLU by Liger's kernels where a self-check shows equal numbers,
and returns a `PatchReport` of what was patched, what was not and why; `report.undo()` is the way back. On a machine
without an accelerator nothing is patched and the report says so. The fused cross-entropy is in the room `losses`.

    from hf_pretrain.kernels.liger_patch import patch_with_liger

    report = patch_with_liger(model.cuda())
    print(report)                  # rope: patched (...); rms_norm: patched (9 modules); swiglu: patched (4 modules)
    report.undo()
"""
