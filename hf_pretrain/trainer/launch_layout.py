"""The layout of processes that `accelerate launch` asked for, checked before the process group starts.

accelerate writes the sizes of a `parallelism_config` into the environment, and finds out that they do not fit the
number of processes only after every process has joined.
"""

from collections.abc import Mapping

from hf_pretrain.utils.errors import UserError


DIMENSIONS = ("dp_replicate", "dp_shard", "tp", "cp", "sp")


def check_layout(environment: Mapping[str, str]) -> None:
    """Makes sure that the sizes of the parallel dimensions multiply to the number of processes.

    Args:
        environment (`Mapping[str, str]`): The environment of the process.

    Raises:
        UserError: If a size is no whole number from 1 up, the sizes do not multiply to `WORLD_SIZE`, or two of them
            do not go together.
    """
    if environment.get("ACCELERATE_USE_PARALLELISM_CONFIG", "false").lower() not in ("true", "1"):
        return
    sizes = {}
    for name in DIMENSIONS:
        text = environment.get(f"PARALLELISM_CONFIG_{name.upper()}_SIZE", "1")
        if not text.isdecimal() or int(text) < 1:
            raise UserError(f"parallelism_config_{name}_size = {text}; allowed are whole numbers from 1 up")
        sizes[name] = int(text)
    world = int(environment.get("WORLD_SIZE", "1"))
    product = 1
    for size in sizes.values():
        product *= size
    # DeepSpeed's sequence parallelism divides the processes itself and needs no other size.
    fits = product == world or (sizes["sp"] > 1 and world % product == 0)
    if not fits:
        named = " x ".join(f"{name}_size {size}" for name, size in sizes.items() if size > 1) or "all sizes 1"
        raise UserError(
            f"parallelism_config: {named} = {product}, but {world} process(es) were launched; the sizes must multiply "
            "to the number of processes: change one of them, or num_processes"
        )
    if sizes["cp"] > 1 and sizes["sp"] > 1:
        raise UserError(
            f"parallelism_config: cp_size {sizes['cp']} and sp_size {sizes['sp']}; both split the sequence: keep one"
        )
    if (sizes["tp"] > 1 or sizes["cp"] > 1) and sizes["dp_replicate"] > 1 and sizes["dp_shard"] == 1:
        raise UserError(
            f"parallelism_config: dp_replicate_size {sizes['dp_replicate']} with tp_size {sizes['tp']} and cp_size "
            f"{sizes['cp']}; these go with sharded copies only: set dp_shard_size above 1"
        )


def check_stage_layout(environment: Mapping[str, str]) -> None:
    """Refuses a launch that needs a model loaded by a plan, which a recipe's stage does not do.

    A stage builds its model whole and saves checkpoints that can be resumed. Tensor and expert parallelism need one
    that was loaded in parts, and transformers' Trainer writes no resumable checkpoint for such a model.

    Args:
        environment (`Mapping[str, str]`): The environment of the process.

    Raises:
        UserError: If the launch asks for tensor parallelism.
    """
    if environment.get("ACCELERATE_USE_PARALLELISM_CONFIG", "false").lower() not in ("true", "1"):
        return
    size = environment.get("PARALLELISM_CONFIG_TP_SIZE", "1")
    if size != "1":
        raise UserError(
            f"parallelism_config_tp_size = {size}; a stage builds its model whole, and its checkpoints could not be "
            "resumed: use fsdp2.yaml, or load the model with DistributedConfig in a script of your own and hand it to "
            "PretrainTrainer with save_only_model or save_strategy: 'no'"
        )
