"""libimbrex_torch.so: what Python calls of it, beside the operators."""

from __future__ import annotations

import ctypes
from typing import Any, NoReturn

import torch  # the library finds torch's own among those that are loaded

from .. import _c
from .._errors import Error, InvalidInput, error_of
from .._library import torch_operators
from .._report import Report, report_of
from .frames import no_graph_of_its_own

_ConnectFunction = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_char_p, ctypes.POINTER(ctypes.c_char), ctypes.c_size_t)


def _typed() -> ctypes.CDLL:
    library = torch_operators()
    for name, result, arguments in (
        ("set_connect", None, [_ConnectFunction]),
        ("connect", ctypes.c_int32, [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint64]),
        ("disconnect", ctypes.c_int32, [ctypes.c_char_p]),
        ("trim", ctypes.c_int32, [ctypes.c_char_p]),
        ("restore", ctypes.c_int32, [ctypes.c_char_p]),
        ("check", ctypes.c_int32, [ctypes.c_char_p]),
        ("refuse", ctypes.c_int32, [ctypes.c_char_p, ctypes.c_char_p]),
        ("ask", ctypes.c_int32, [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p]),
        ("report", ctypes.c_int32, [ctypes.c_char_p, ctypes.POINTER(_c.ReportFields)]),
        ("last_code", ctypes.c_int32, []),
        ("last_message", ctypes.c_char_p, []),
        ("counted", ctypes.c_char_p, [ctypes.c_int32]),
        ("count", ctypes.c_int64, [ctypes.c_int32]),
        ("schema", ctypes.c_char_p, [ctypes.c_int32]),
    ):
        function: Any = getattr(library, f"imbrex_torch_{name}")
        function.restype, function.argtypes = result, arguments
    return library


library = _typed()


def call(name: str, *arguments: Any) -> None:
    """Calls imbrex_torch_<name> and raises what its status says."""
    status = getattr(library, f"imbrex_torch_{name}")(*arguments)
    if status:
        raise error_of(status, library.imbrex_torch_last_message().decode(errors="replace"))


# What Python and torch raise of arguments that a call does not take.
_OF_ARGUMENTS = (TypeError, AttributeError, IndexError, ValueError, OverflowError)
_MAY_BE_LISTS = ("b", "bias", "scale_b", "out")


@no_graph_of_its_own
def _understood(error: Exception, tensors: dict[str, Any]) -> Exception:
    """InvalidInput, with the argument's name where one is seen to be no plain tensor, or the error as it is."""
    of_schema = type(error) is RuntimeError and "Expected a value of type" in str(error)
    # An operator is not implemented for sparse tensors. What Imbrex itself says so of, such as a derivative, is no
    # matter of one argument.
    unimplemented = isinstance(error, NotImplementedError)
    if isinstance(error, Error) or not (of_schema or unimplemented or isinstance(error, _OF_ARGUMENTS)):
        return error
    for name, given in tensors.items():
        for one in given if isinstance(given, (list, tuple)) and name in _MAY_BE_LISTS else (given,):
            if one is not None and not isinstance(one, torch.Tensor):
                return InvalidInput(f"{name} is of type {type(one).__name__}: it must be a torch.Tensor")
            if one is not None and one.layout is not torch.strided:
                return InvalidInput(f"{name} has layout {one.layout}: it must be {torch.strided}")
    return error if unimplemented else InvalidInput((str(error) or type(error).__name__).splitlines()[0])


@no_graph_of_its_own
def raise_for(error: Exception, name: str, **tensors: Any) -> NoReturn:
    """
    Raises what a call of the group of that name failed with: Imbrex' error where torch made a RuntimeError of it.

    `tensors` are those of the call's arguments that are tensors or lists of them, by their names.

    What fails here before the library's call is this rank's refusal, which the other ranks hear, too. The library tells
    them of its own.
    """
    if torch.compiler.is_compiling():
        raise error
    if isinstance(error, RuntimeError) and not isinstance(error, Error):
        message = library.imbrex_torch_last_message().decode(errors="replace")
        if message and message in str(error):
            told = error_of(library.imbrex_torch_last_code(), message)
            told.was_told = True  # type: ignore[attr-defined]
            raise told from None
    understood = _understood(error, tensors)
    if understood is not error:
        understood.__cause__ = error
        error = understood
    is_refusal = isinstance(error, InvalidInput) or not isinstance(error, Error)
    if is_refusal and not getattr(error, "was_told", False):
        reason = str(error) or type(error).__name__
        library.imbrex_torch_refuse(name.encode(), reason.encode(errors="replace"))
        error.was_told = True  # type: ignore[attr-defined]
    raise error


def ask(name: str, field: str, value: Any) -> None:
    """Says what the group's next call is asked for: where ranks are asked for different things, all refuse it."""
    if library.imbrex_torch_ask(name.encode(), field.encode(), str(value).encode()):
        raise error_of(library.imbrex_torch_last_code(), library.imbrex_torch_last_message().decode(errors="replace"))


def report(name: str) -> Report:
    """Collective: what became of the last all-reduce of that group that was made with a report."""
    fields = _c.new(_c.ReportFields)
    call("report", name.encode(), ctypes.byref(fields))
    return report_of(fields)


def schemas() -> list[str]:
    """Every operator as torch knows it."""
    found: list[str] = []
    while text := library.imbrex_torch_schema(len(found)):
        found.append(text.decode())
    return found


def calls() -> dict[str, int]:
    """How often each operator was called, and how many were made, in this process."""
    found: dict[str, int] = {}
    while name := library.imbrex_torch_counted(len(found)):
        found[name.decode()] = library.imbrex_torch_count(len(found))
    return found


def set_connect(connect: Any) -> None:
    """Gives the operators what connects a group that they do not know: a function of its name."""

    def connect_by_name(name: bytes, message: Any, room: int) -> int:
        try:
            connect(name.decode())
        except Exception as error:
            text = (str(error) or type(error).__name__).encode()[: room - 1] + b"\0"
            ctypes.memmove(message, text, len(text))
            return 2 if isinstance(error, ValueError) else 3
        return 0

    global _kept
    _kept = _ConnectFunction(connect_by_name)
    library.imbrex_torch_set_connect(_kept)


_kept: Any = None
