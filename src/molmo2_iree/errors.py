"""Every error a user can cause: what was got, what was expected, where, and the command that fixes it.

Exit codes (documented in README): 0 done, 1 a fault of this program, 2 wrong command line, then one per class below.
"""


class MolmoError(Exception):
    """A refusal in words. ``exit_code`` is the process's exit status when the error reaches the command line."""

    exit_code = 1

    def __init__(self, where: str, *, got: object, expected: object, fix: str) -> None:
        self.where, self.got, self.expected, self.fix = where, got, expected, fix
        super().__init__(f"{where}: got {got}, expected {expected}. Fix: {fix}")


class ConfigError(MolmoError):
    """A configuration file or option is unknown, of a wrong type, or contradicts another."""

    exit_code = 3


class CheckpointError(MolmoError):
    """A lock, a download, or a checkpoint file is not what was pinned."""

    exit_code = 4


class UnsupportedError(MolmoError):
    """The checkpoint describes a model this project does not build."""

    exit_code = 5


class WeightsError(MolmoError):
    """A tensor of the checkpoint or of a converted archive is not what the name table expects."""

    exit_code = 6


class BuildError(MolmoError):
    """Tracing or compiling failed, or the installed tools are not the pinned ones."""

    exit_code = 7


class GateError(MolmoError):
    """A measured build is outside its tolerances, or its record cannot be trusted."""

    exit_code = 8


class BundleError(MolmoError):
    """A bundle is incomplete, damaged, or made for something else than this runtime, machine or configuration."""

    exit_code = 9


class RequestError(MolmoError):
    """A picture, prompt or array given by the caller cannot be answered."""

    exit_code = 10


class BusyError(RequestError):
    """A request that was not taken because the queue is full or the engine is ending; it may be sent again."""


class EngineError(MolmoError):
    """A step failed under a request that was in order: a fault of this program, the bundle or the machine."""
