"""One process of a run by torchrun; see test_invariants_watching.py. Usage: `watching_worker.py FOLDER`."""

import json
import os
import sys
from pathlib import Path

import torch
from tiny_training import losses, tiny_strata, trainer, weights

from hf_pretrain.callbacks.effect_checks import EffectChecksCallback
from hf_pretrain.trainer.autopsy_callback import AutopsyCallback
from hf_pretrain.utils.errors import UserError


class Always(AutopsyCallback):
    """An autopsy of the third step, spike or not."""

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step == 2 and state.is_world_process_zero:
            self.examine(3)


def main():
    torch.set_num_threads(1)
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    found, options = {}, {"per_device_train_batch_size": 4, "steps": 4}
    for name, watched in (("watched", True), ("blind", False)):
        callbacks = [EffectChecksCallback(watched), Always(10 if watched else 0)]
        model = tiny_strata(balance_scope="global", router_bias_update_rate=0.01, router_noise="gumbel")
        saves = {"save_strategy": "steps", "save_steps": 2}
        run = trainer(folder / name, model, callbacks=callbacks, **saves, **options)
        run.train()
        torch.save(weights(run), folder / f"{name}-{rank}.pt")
        found[name] = {"losses": losses(run), "checks": run.find_callback(EffectChecksCallback).found}
        found[name]["written"] = list(run.find_callback(Always).written)
    broken = trainer(folder / "broken", tiny_strata(num_experts=0, router_noise="gumbel"), **options)
    try:
        broken.train()
        found["broken"] = "trained"
    except UserError as error:
        found["broken"] = str(error)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
    os._exit(0)  # gloo threads can abort a process that ends by itself after everything is written
