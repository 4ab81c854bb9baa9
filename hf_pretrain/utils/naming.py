"""Messages for names that nobody knows, with the likely meaning."""

import difflib
from collections.abc import Iterable


def unknown_name_message(kind: str, name: str, known: Iterable[str]) -> str:
    """Describes an unknown name and what was probably meant.

    Args:
        kind (`str`): What the name stands for, e.g. `"source"`.
        name (`str`): The name that was given.
        known (`Iterable[str]`): The names that exist.

    Returns:
        `str`: For example `Unknown source 'wbe'. Did you mean 'web'? Available: books, web.`
    """
    names = sorted(str(item) for item in known)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
    guess = f" Did you mean '{close[0]}'?" if close else ""
    shown = ", ".join(names[:40]) + (", ..." if len(names) > 40 else "") if names else "none"
    return f"Unknown {kind} '{name}'.{guess} Available: {shown}."
