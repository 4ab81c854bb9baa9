"""`hf-pretrain corpus`: raw files to token shards, a tokenizer, and an account of every document.

The work is `hf_pretrain.corpus.pipeline.build_corpus`; this file reads the recipe, keeps finished steps when only some
settings changed, and records the facts.
"""

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hf_pretrain.scripts.execution import stage_main
from hf_pretrain.scripts.recipe import StageSpec
from hf_pretrain.utils.facts import Facts


if TYPE_CHECKING:
    from hf_pretrain.corpus.config import CorpusConfig

logger = logging.getLogger(__name__)


def check(spec: StageSpec) -> None:
    """Validates a corpus recipe; no input needs to exist.

    Args:
        spec (`StageSpec`): The stage.

    Raises:
        UserError: If a key is unknown, missing, or of the wrong type or value.
    """
    _config(spec)


def inputs(spec: StageSpec) -> list[Path]:
    """Lists the user's files that the corpus is made of.

    Args:
        spec (`StageSpec`): The stage.

    Returns:
        `list[Path]`: The files; the stage runs again when one changes.

    Raises:
        UserError: If a file is missing.
    """
    from hf_pretrain.corpus.pipeline import sources_from_files

    return sources_from_files(_config(spec))


def run(spec: StageSpec) -> None:
    """Builds the corpus in the stage's folder and records its facts.

    Args:
        spec (`StageSpec`): The stage.

    Raises:
        UserError: If an input is missing or broken.
    """
    from hf_pretrain.corpus.pipeline import build_corpus

    _keep_steps(spec)
    facts = build_corpus(_config(spec), spec.stage_dir)
    Facts(spec.run_dir).record_stage(spec.name, spec.kind, facts)
    totals = facts["totals"]
    logger.info(
        "corpus: %d of %d documents, %d tokens, %.2f bytes a token",
        totals["documents"],
        totals["raw_documents"],
        totals["tokens"],
        facts["tokenizer"]["bytes_per_token"],
    )


def _config(spec: StageSpec) -> "CorpusConfig":
    from hf_pretrain.corpus.config import CorpusConfig

    return CorpusConfig.from_mapping(spec.config, str(spec.path))


def _keep_steps(spec: StageSpec) -> None:
    """Takes over the steps of the previous folder: their names hold fingerprints, so only valid ones are used."""
    previous = spec.run_dir / f"{spec.name}.previous" / "steps"
    current = spec.stage_dir / "steps"
    if previous.is_dir() and not current.exists():
        current.parent.mkdir(parents=True, exist_ok=True)
        os.replace(previous, current)


def main(argv: list[str] | None = None) -> int:
    """The command line of `hf-pretrain corpus`.

    Args:
        argv (`list[str]`, *optional*): Arguments; those of the process by default.

    Returns:
        `int`: The exit code.
    """
    return stage_main("corpus", run, argv)


if __name__ == "__main__":
    raise SystemExit(main())
