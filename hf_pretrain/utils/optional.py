"""Optional packages: is one there, and if not, which pip line brings it."""

import importlib
import importlib.util
from types import ModuleType


class MissingPackageError(ImportError):
    """An optional package is not installed; the message holds the pip line."""


def is_available(module: str) -> bool:
    """Tells whether a top-level module can be imported, without importing it.

    Args:
        module (`str`): Name of the module, e.g. `"liger_kernel"`.

    Returns:
        `bool`: Whether it is installed.
    """
    return importlib.util.find_spec(module.partition(".")[0]) is not None


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Imports an optional module or says how to install it.

    Args:
        module (`str`): Dotted name of the module.
        extra (`str`): The extra of this distribution that brings it, e.g. `"sft"`.
        purpose (`str`): What it is needed for, in the user's words.

    Returns:
        `ModuleType`: The imported module.

    Raises:
        MissingPackageError: If the top-level package is not installed; a fault inside an installed one is not hidden.
    """
    if not is_available(module):
        raise MissingPackageError(
            f'{purpose} needs {module.partition(".")[0]}: run `pip install "hf-pretrain[{extra}]"`.'
        )
    return importlib.import_module(module)
