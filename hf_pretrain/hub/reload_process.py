"""What the fresh process of `push.reload_check` runs, as `python -I FILE`: load a folder where this package is not.

Isolated mode leaves out PYTHONPATH, the user's packages and the folder of this file; an installed copy of the package
is blocked by a finder that refuses its name. So nothing of this package may be imported here, and nothing can be.
"""

import importlib.abc
import json
import sys
import time


PACKAGE = "hf_pretrain"


class Blocker(importlib.abc.MetaPathFinder):
    """Refuses to import this package."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Asked first for every import.

        Args:
            name (`str`): Dotted name of the module.
            path (`object`, *optional*): Not used.
            target (`object`, *optional*): Not used.

        Raises:
            ImportError: If the name is this package's.
        """
        if name.partition(".")[0] == PACKAGE:
            raise ImportError(f"{name} is out of reach here on purpose")


def main() -> None:
    """Reads a request from standard input, writes logits and an answer to the files it names."""
    sys.meta_path.insert(0, Blocker())
    request = json.load(sys.stdin)

    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    begin = time.monotonic()
    tokenizer = AutoTokenizer.from_pretrained(request["folder"])
    model = AutoModelForCausalLM.from_pretrained(request["folder"], trust_remote_code=True).eval()
    seconds = time.monotonic() - begin
    ids = torch.tensor([request["input_ids"]])
    with torch.inference_mode():
        logits = model(input_ids=ids).logits[0].float()
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=request["max_new_tokens"], do_sample=False
        )
    save_file({"logits": logits.contiguous()}, request["logits"])
    new = output[0, ids.shape[1] :].tolist()
    answer = {
        "text": tokenizer.decode(new, skip_special_tokens=True),
        "new_tokens": len(new),
        "load_seconds": seconds,
        "model_class": type(model).__name__,
        "prompt_ids": tokenizer(request["prompt_text"], add_special_tokens=False)["input_ids"],
        "package_loaded": any(name.partition(".")[0] == PACKAGE for name in sys.modules),
    }
    with open(request["answer"], "w", encoding="utf-8") as stream:
        json.dump(answer, stream)


if __name__ == "__main__":
    main()
