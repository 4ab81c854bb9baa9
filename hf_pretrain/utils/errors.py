"""The exceptions that end a command with one line: a mistake to mend, a training that stopped itself, a signal."""


class UserError(ValueError):
    """A mistake in a command, a recipe or an input file.

    The message is one line: what was given, what is allowed, what to do. The command line prints it without a
    traceback and exits with code 2.
    """


def one_line(error: BaseException, limit: int = 600) -> str:
    """Folds an exception's message into one line.

    Args:
        error (`BaseException`): The exception to describe.
        limit (`int`, *optional*, defaults to 600): Longest result, in characters.

    Returns:
        `str`: The message without line breaks; the class name when the message is empty.
    """
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."


class TrainingStopped(RuntimeError):
    """Training stopped itself for a reason that running it again would not mend; its checkpoints are good.

    The message is one line. The command line prints it without a traceback and exits with code 3.
    """


class Interrupted(BaseException):
    """A signal asked the work to stop, and what was done so far is safe on disk.

    Args:
        signal_number (`int`): The signal; the command exits with `128 + signal_number`.
        message (`str`, *optional*): What was saved.
    """

    def __init__(self, signal_number: int, message: str = "interrupted") -> None:
        super().__init__(message)
        self.signal_number = signal_number
