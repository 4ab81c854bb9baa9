"""`hf-pretrain VERB ...`: finds the verb's module and hands over.

Only the standard library is imported here, so that `hf-pretrain --help` answers at once.
"""

import importlib
import sys

from hf_pretrain import __version__
from hf_pretrain.utils.naming import unknown_name_message


# verb: (module, what `--help` says)
VERBS = {
    "run": ("hf_pretrain.scripts.run", "all stages of a recipe folder in order, resumable"),
    "corpus": ("hf_pretrain.scripts.corpus", "raw pages -> clean, deduplicated, decontaminated token shards"),
    "pretrain": ("hf_pretrain.scripts.pretrain", "pretrain, anneal, extend the context: one verb, different YAML"),
    "sft": ("hf_pretrain.scripts.sft", "curate instruction data and fine-tune on it with TRL"),
    "evaluate": ("hf_pretrain.scripts.evaluate", "bits per byte by domain, benchmarks clean against contaminated"),
    "push": ("hf_pretrain.scripts.push", "card, save, reload check, push to the Hub"),
    "average": ("hf_pretrain.scripts.average", "the mean of several checkpoints of one model"),
    "export": ("hf_pretrain.scripts.export", "a Strata as a plain llama, qwen3, mixtral or qwen3_moe checkpoint"),
    "handoff": ("hf_pretrain.scripts.handoff", "weights and recipe for pipeline-parallel training elsewhere"),
    "report": ("hf_pretrain.scripts.report", "one HTML page about a run"),
    "plan": ("hf_pretrain.scripts.plan", "size, tokens, learning rate, batch, time and cost from a model or a budget"),
    "ladder": ("hf_pretrain.scripts.ladder", "small runs over sizes and tokens: written, run or submitted"),
    "fit": ("hf_pretrain.scripts.fit", "a scaling law from such runs, with intervals, and the best split of a budget"),
    "trace": ("hf_pretrain.scripts.trace", "which documents the batch of a step held"),
    "autopsy": ("hf_pretrain.scripts.autopsy", "what caused the spike of a step: data, numerics or learning rate"),
    "env": ("hf_pretrain.scripts.env", "versions and what this machine can do"),
}


def usage() -> str:
    """The text of `--help`.

    Returns:
        `str`: One line a verb.
    """
    lines = ["usage: hf-pretrain VERB [options]", ""]
    lines += [f"  {verb:<10} {text}" for verb, (_, text) in VERBS.items()]
    lines += ["", "hf-pretrain VERB --help shows a verb's options. Start with: hf-pretrain run recipes/tiny_cpu"]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Dispatches to a verb.

    Args:
        argv (`list[str]`, *optional*): Arguments; those of the process by default.

    Returns:
        `int`: The exit code.
    """
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if arguments[0] in ("-V", "--version", "version"):
        print(f"hf-pretrain {__version__}")
        return 0
    verb, *rest = arguments
    if verb not in VERBS:
        print(f"error: {unknown_name_message('verb', verb, VERBS)}", file=sys.stderr)
        return 2
    try:
        return importlib.import_module(VERBS[verb][0]).main(rest)
    except KeyboardInterrupt:  # before or after the part that the verb guards itself
        print("\ninterrupted: run the same command again to go on.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
