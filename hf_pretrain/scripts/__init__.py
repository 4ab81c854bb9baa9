"""The commands: thin `main()`s that join the rooms below.

`cli.py` finds the verb, `recipe.py` reads a stage's YAML file and runs a stage, `run.py` runs a recipe folder. Every
other file is one verb with three functions: `check(spec)` validates without working, `run(spec)` works, `main(argv)`
is what `python -m hf_pretrain.scripts.<verb>` and `accelerate launch -m` call.

Nothing heavy is imported at the top of a file here: `--help` answers at once.

```
hf-pretrain run recipes/tiny_cpu
hf-pretrain trace runs/tiny_cpu --step 3
hf-pretrain trace runs/tiny_cpu --doc web/0
hf-pretrain pretrain --config recipes/tiny_cpu/3_anneal.yaml --micro-anneal books
hf-pretrain average runs/tiny_cpu/2_pretrain runs/tiny_cpu/3_anneal runs/tiny_cpu/mean
hf-pretrain handoff runs/tiny_cpu/2_pretrain --to megatron handed_over --ep 2
accelerate launch --config_file recipes/accelerate_configs/single.yaml -m hf_pretrain.scripts.pretrain --config recipes/tiny_cpu/2_pretrain.yaml
```
"""  # noqa: E501
