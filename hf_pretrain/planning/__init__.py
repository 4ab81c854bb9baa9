"""The room of arithmetic about runs: parameters, FLOPs, scaling laws, cost. Read `counting.py`, then `chinchilla.py`.

Nothing here imports more than the standard library (`fitting.py` takes numpy and scipy when it is called), so planning
needs neither torch nor a GPU. Every law says what its N counts and refuses a size counted otherwise.

Runs:

- `counting.py`: `count_parameters(config)`: total, active, embedding, matrix-product parameters, dense or MoE.
- `compute.py`: `training_flops_per_token(config, seq_length, convention)` and `model_flops_utilisation(...)`.
- `hardware.py`: `peak_flops(device_name)`; `None` for a device that is not in the table; `load_devices(yaml)` puts
  yours before it.
- `head_memory.py`: `head_memory(tokens, vocab, hidden)`: peak bytes of head and loss: naive, chunked, Liger.
- `cost.py`: device-hours, days and price on a `Cluster`, with the utilisation that published runs imply.
- `advice.py`: tie, sparsify, repeat, continue, warm up, decay: each choice with its rule, numbers and source.
- `activations.py`, `memory.py`: `estimate_memory(config, seq_length, micro_batch, ...)`, what a device holds at the
  peak of a step; `parallelism.py`: degrees, what they divide, what is sent.
- `layout.py`: `search_layouts(config, cluster, seq_length, global_batch)`: the fastest that fit, why others fell out.
- `run_plan.py`: `make_plan(...)`, size, tokens, time and cost; `shapes.py`, `training_plan.py`: the model, steps,
  stages, head, memory, layout and advice for it. `hf-pretrain plan` prints both and writes a recipe.

Laws:

- `quantities.py`: `ModelSize` with its convention, "8B" and "15T".
- `chinchilla.py`: L(N, D) = E + A / N^alpha + B / D^beta, its sets of constants and closed-form frontier.
- `scaling_laws.py`: laws by name, how far they disagree, translation between counts.
- `kaplan.py`: the laws of 2020, each with its own constants.
- `repetition.py`, `data_constrained.py`: what further epochs are worth; loss and optimum when tokens run out.
- `references.py`: published models to set a plan beside.
- `lifetime.py`: the optimum with inference counted, and over-training.
- `moe_laws.py`: sparse models; advisory.
- `hyperparameters.py`: learning rate and batch laws, gradient noise scale, transfer across widths.
- `schedule_laws.py`: loss curves from learning-rate curves.

From your own runs:

- `ladder.py`: small runs over sizes and tokens, one family of shapes; `hf-pretrain ladder` writes and runs them.
- `ladder_points.py`: such runs from a CSV file or from their facts, with every slip of a unit refused.
- `fitting.py`: `fit_parametric(points)` and its bootstrap intervals (approach 3).
- `isoflop.py`: the minima of equal compute (approach 2), as a cross-check.
- `closed_loop.py`: a stage's plan, plan against measured, and the next plan at the measured speed.
- `fit_report.py`: both, held-out errors, and the best split of a budget; `hf-pretrain fit` prints it.

    from hf_pretrain.planning.compute import model_flops_utilisation, training_flops_per_token
    from hf_pretrain.planning.counting import count_parameters
    from hf_pretrain.planning.hardware import peak_flops
    from hf_pretrain.planning.scaling_laws import get_law

    config = {"model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32,
              "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
              "num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": False}
    print(count_parameters(config).active)                                  # 12879925248
    flops = training_flops_per_token(config, 4096, "matmul_causal")
    print(model_flops_utilisation(5000, flops, peak_flops("NVIDIA H100 80GB HBM3")))
    print(get_law("epoch").optimum(1e21).tokens_per_parameter)              # 21.588...
"""
