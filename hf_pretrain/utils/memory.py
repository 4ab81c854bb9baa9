"""How much memory a process has held, from the operating system."""

import sys


def peak_memory_bytes(include_children: bool = False) -> int | None:
    """Reads the largest resident memory.

    Args:
        include_children (`bool`, *optional*, defaults to `False`): Whether a finished child that held more counts.

    Returns:
        `int`: Bytes, without those on a GPU; `None` where the system does not say.
    """
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if include_children:
        peak = max(peak, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
    # Linux counts in KiB, macOS in bytes.
    return peak if sys.platform == "darwin" else peak * 1024
