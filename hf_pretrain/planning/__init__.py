"""The room of arithmetic about runs: parameters, FLOPs, peaks, repeated data. Read `counting.py` first.

Nothing here imports more than the standard library, so planning needs neither torch nor a GPU.

- `counting.py`: `count_parameters(config)`: total, active, embedding, matrix-product parameters, dense or MoE.
- `compute.py`: `training_flops_per_token(config, seq_length, convention)` and `model_flops_utilisation(...)`.
- `hardware.py`: `peak_flops(device_name)`; `None` for a device that is not in the table.
- `repetition.py`: `effective_tokens(tokens, unique_tokens)`, what further epochs are worth.

    from hf_pretrain.planning.compute import model_flops_utilisation, training_flops_per_token
    from hf_pretrain.planning.counting import count_parameters
    from hf_pretrain.planning.hardware import peak_flops

    config = {"model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32,
              "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
              "num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": False}
    print(count_parameters(config).active)                                  # 12879925248
    flops = training_flops_per_token(config, 4096, "matmul_causal")
    print(model_flops_utilisation(5000, flops, peak_flops("NVIDIA H100 80GB HBM3")))
"""
