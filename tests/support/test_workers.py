"""Answers of processes that do one job are read by their type, and refused where they do not fit."""

from __future__ import annotations

import sys

import msgspec
import pydantic
import pytest

from edgeplan.support.subprocesses import program_command, run
from edgeplan.support.workers import ColdRunError, answered


class _Record(msgspec.Struct, forbid_unknown_fields=True):
    built: int


class _Model(pydantic.BaseModel):
    built: int


@pytest.mark.parametrize("kind", [_Record, _Model])
def test_an_answer_is_a_value_of_its_type(kind: type[_Record | _Model]) -> None:
    assert answered(kind, "building", 0, b'{"built": 3}', b"").built == 3


@pytest.mark.parametrize("kind", [_Record, _Model])
@pytest.mark.parametrize("text", [b"", b"Segmentation fault", b"[]", b'{"built": "many"}', b"\xff"])
def test_an_answer_that_does_not_fit_ends_in_one_message_with_the_last_words(kind: type[_Record | _Model], text: bytes) -> None:
    with pytest.raises(ColdRunError, match=r"building: the answer does not fit its schema: (?s:.*)out of paper"):
        answered(kind, "building", 0, text, b"printer:\nout of paper\n")


def test_a_process_that_failed_is_not_read() -> None:
    with pytest.raises(ColdRunError, match="building: the process"):
        answered(_Record, "building", 3, b'{"built": 3}', b"")


def test_what_libraries_print_is_no_answer() -> None:
    said = "print('python'); sys.stdout.flush(); ctypes.CDLL(None).puts(b'library'); ctypes.CDLL(None).fflush(None)"
    code = f"import ctypes, os, sys; own = take_stdout(); {said}; os.write(own, b'answer')"
    done = run([sys.executable, "-c", f"from edgeplan.support.answers import take_stdout; {code}"])
    assert (done.returncode, done.stdout, done.stderr) == (0, b"answer", b"python\nlibrary\n")


def test_processes_keep_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    done = run(program_command(sys.executable, "-c", "import sys; print(sys.dont_write_bytecode)"))
    assert done.stdout == b"False\n"
