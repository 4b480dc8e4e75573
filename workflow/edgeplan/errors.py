"""Defines the errors edgeplan raises on purpose.

Every message says what was wrong, where, and what to do next; the command line prints it without a traceback and exits with
`exit_code`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class EdgeplanError(Exception):
    """Reports what a user can correct: every error raised on purpose is one."""

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", next_step: str = "") -> None:
        from edgeplan.terminal import escaped  # noqa: PLC0415  nobody waits for it before there is an error

        self.what, self.where, self.next_step = what, where, next_step
        lines = [escaped(what, "\n")]
        if where:
            lines.append(f"  where: {escaped(where)}")
        if next_step:
            lines.append("  next:  " + escaped(next_step, "\n"))
        super().__init__("\n".join(lines))

    @property
    def headline(self) -> str:
        """Return the first line of what was wrong."""
        return self.what.splitlines()[0]


class ModelError(EdgeplanError):
    """Reports a model file that cannot be read, contradicts itself, is not static in shape, or holds what is not known."""

    exit_code = 2


class DeviceError(EdgeplanError):
    """Reports an unknown device, a wrong device file, or an engine that is not installed."""

    exit_code = 3


class ParamsError(EdgeplanError):
    """Reports a key of params.yaml that is misspelt, missing or out of range."""

    exit_code = 4


class FormatError(EdgeplanError):
    """Reports a file of another format version, or one that does not fit its schema."""

    exit_code = 5


class StoreError(EdgeplanError):
    """The row store could not be written or read."""

    exit_code = 6


class NoiseError(EdgeplanError):
    """The machine is too noisy for its figures to be trusted."""

    exit_code = 7


class BusyError(EdgeplanError):
    """Another process is measuring on this physical machine."""

    exit_code = 8


class PredictionError(EdgeplanError):
    """A kernel has no predictor."""

    exit_code = 9


class InputError(EdgeplanError):
    """Reports tensors given for a run that do not fit the model's inputs, or a file of them that cannot be read."""

    exit_code = 11


class CheckError(EdgeplanError):
    """A run's outputs differ from ONNX Runtime's by more than rounding."""

    exit_code = 12


class InfeasibleError(EdgeplanError):
    """The request does not fit, as buffers in a capacity that is too small for them.

    Where that is not `proven`, nothing that was found fitted, or runs took more than they should.
    """

    exit_code = 13

    def __init__(self, what: str, *, where: str = "", next_step: str = "", proven: bool = True) -> None:
        super().__init__(what, where=where, next_step=next_step)
        self.proven = proven


class UndecidedError(EdgeplanError):
    """Neither a solution nor a proof that there is none was found in the time given."""

    exit_code = 14


class SlowerError(EdgeplanError):
    """A model is for certain slower than what it is held against, by more than is allowed."""

    exit_code = 15


def require_known(what: str, given: Iterable[str], known: Iterable[str], where: str) -> None:
    """Refuse a name that is not among the known ones: a ParamsError that names those that there are."""
    names = tuple(known)
    for name in given:
        if name not in names:
            raise ParamsError(f"there is no {what} {name!r}", where=where, next_step=f"choose from {', '.join(names)}")
