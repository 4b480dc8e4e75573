"""What a board gets: wheels picked from the lock, a bundle that is checked there, and refusals that name the next command."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from edgeplan.devices.config import DeviceFile
from edgeplan.errors import DeviceError
from edgeplan.measurement.board import deploy as deploying
from edgeplan.measurement.board import install
from edgeplan.measurement.board.deploy import BoardTarget, bundle_digest, deploy, pinned_requirements

ROOT = Path(__file__).parents[3]
PI = BoardTarget((3, 11), "aarch64", 36)
A, B = "a" * 64, "b" * 64
LOCK = f"""\
numpy==2.4 ; python_full_version < '3.12' \\
    --hash=sha256:{A} \\
    --hash=sha256:{B}
    # via
    #   onnxruntime
    #   pandas
numpy==2.5 ; python_full_version >= '3.12' \\
    --hash=sha256:{B}
    # via
    #   onnxruntime
    #   pandas
"""


def test_of_versions_that_are_for_other_pythons_the_boards_own_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploying, "_WORKER", ("numpy",))
    engine = f"onnxruntime==1.0 \\\n    --hash=sha256:{A}\n    # via edgeplan (pyproject.toml)\n"
    assert pinned_requirements(LOCK + engine, "onnxruntime", PI) == [
        f"numpy==2.4 --hash=sha256:{A} --hash=sha256:{B}",
        f"onnxruntime==1.0 --hash=sha256:{A}",
    ]
    newer = pinned_requirements(LOCK + engine, "onnxruntime", BoardTarget((3, 12), "aarch64", 36))
    assert newer[0] == f"numpy==2.5 --hash=sha256:{B}"
    with pytest.raises(DeviceError, match="the lock does not hold onnxruntime"):
        pinned_requirements(LOCK, "onnxruntime", PI)


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_the_real_lock_gives_each_package_once_and_nothing_heavy(engine: str) -> None:
    lines = pinned_requirements((ROOT / "requirements.lock").read_text(), engine, PI)
    names = [line.split("==")[0] for line in lines]
    assert len(names) == len(set(names))
    assert {"pydantic-core", "numpy", engine} <= set(names), "what the worker needs, and what that needs"
    assert not {"pandas", "pyarrow", "lightgbm", "snakemake", "dvc", "matplotlib"} & set(names)
    assert all("--hash=sha256:" in line for line in lines)
    assert len(names) < 40


@pytest.mark.parametrize(
    ("target", "engine", "what", "next_step"),
    [
        (BoardTarget((3, 10), "aarch64", 35), "onnxruntime", "Python is 3.10", "--python python3.11"),
        (BoardTarget((3, 11), "armv7l", 36), "onnxruntime", "no wheels for the processor armv7l", "aarch64"),
        (BoardTarget((3, 11), "aarch64", 0), "onnxruntime", "no GNU C library", "glibc"),
        (PI, "onednn", "no wheels of the engine 'onednn' for aarch64", "onnxruntime"),
        (PI, "tvm", "brought by another package", "by hand"),
    ],
)
def test_a_board_that_no_wheels_are_made_for_is_refused(target: BoardTarget, engine: str, what: str, next_step: str) -> None:
    with pytest.raises(DeviceError, match=what) as caught:
        target.require_supported(engine, "device 'pi'")
    assert next_step in caught.value.next_step


def test_a_bundle_is_another_where_anything_in_it_is() -> None:
    asked = [("onnxruntime", PI), ("onnxruntime", BoardTarget((3, 12), "aarch64", 36)), ("openvino", PI), ("onnxruntime", PI)]
    assert len({bundle_digest(engine, target) for engine, target in asked}) == 3


def bundle(**changes: Any) -> bytes:
    """A bundle without a wheel."""
    content = b"hello"
    manifest = {
        "digest": "d" * 64,
        "files": {"one.whl": hashlib.sha256(content).hexdigest()},
        **changes,
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, text in (("manifest.json", json.dumps(manifest).encode()), (changes.get("name", "one.whl"), content)):
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    return packed.getvalue()


def installed(home: Path, sent: bytes) -> dict[str, Any]:
    environment = {**os.environ, "HOME": str(home)}
    command = [sys.executable, install.__file__, "install"]
    done = subprocess.run(command, input=sent, capture_output=True, check=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("sent", "what"),
    [
        (bundle(files={"one.whl": "0" * 64}), "one.whl of the bundle is damaged"),
        (bundle(name="../../escaped"), "no plain file"),
        (bundle(name=".profile"), "no plain file"),
        (bundle()[:900], "Error"),
    ],
)
def test_a_bundle_that_does_not_fit_changes_nothing_there(tmp_path: Path, sent: bytes, what: str) -> None:
    there = tmp_path / ".local/share/edgeplan"
    there.mkdir(parents=True)
    (there / "environment").mkdir()
    assert what in installed(tmp_path, sent)["error"]
    assert [path.name for path in there.iterdir()] == ["environment"]
    assert not list(tmp_path.rglob("*escaped*"))


def test_probing_tells_what_wheels_have_to_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "LINK", str(tmp_path))
    assert install.installed() == ""
    (tmp_path / install.STAMP).write_text(json.dumps({"digest": "d" * 64}))
    found = install.probe()
    assert (found["installed"], found["python"]) == ("d" * 64, list(sys.version_info[:2]))


def device(*prefix: str, **fields: Any) -> DeviceFile:
    transport = {"kind": "command", "argv": ["worker"], "deploy": list(prefix)}
    return DeviceFile.model_validate(
        {"format_version": 2, "name": "pi", "engine": "onnxruntime", "transport": transport, **fields}
    )


_LIAR = '#!/bin/sh\necho \'{"python": [3, 11], "architecture": "../x", "glibc": 36, "installed": ""}\'\n'


@pytest.mark.parametrize(
    ("asked", "python", "what", "told"),
    [
        (DeviceFile(format_version=1, name="here", engine="onnxruntime"), "", "on this machine", "transport"),
        (device(), "", "not said how", "transport.deploy"),
        (device("env"), "python9", "there is no python9 on the board", "--python"),
        (device("env"), "liar", "the board's answer does not fit: architecture", ""),
        (device("env", architecture="riscv64"), sys.executable, "its file says riscv64", "architecture"),
    ],
)
def test_a_device_that_is_here_or_cannot_be_reached_is_refused(
    asked: DeviceFile, python: str, what: str, told: str, tmp_path: Path
) -> None:
    liar = tmp_path / "liar"
    liar.write_text(_LIAR)
    liar.chmod(0o755)
    with pytest.raises(DeviceError, match=what) as caught:
        deploy(asked, python=str(liar) if python == "liar" else python)
    assert told in f"{caught.value.where} {caught.value.next_step}"


def test_a_board_that_has_it_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploying, "write_bundle", lambda *_: pytest.fail("nothing is to be made"))
    target = BoardTarget(tuple(sys.version_info[:2]), platform.machine(), 36)  # type: ignore[arg-type]
    answer = {"python": target.python, "architecture": target.architecture, "glibc": 36}
    digest = bundle_digest("onnxruntime", target)
    monkeypatch.setattr(deploying, "_asked", lambda *_: {**answer, "installed": digest})
    done = deploy(device("env"))
    assert (done.fresh, done.digest) == (False, digest)


def test_a_board_without_venv_is_told_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(
        [
            {"python": [3, 11], "architecture": "aarch64", "glibc": 36, "installed": ""},
            {"error": "no environment can be made: ensurepip is not available", "venv": True},
        ]
    )
    monkeypatch.setattr(deploying, "_asked", lambda *_: next(answers))
    monkeypatch.setattr(deploying, "write_bundle", lambda *given: given[2].write_bytes(b""))
    with pytest.raises(DeviceError, match="ensurepip") as caught:
        deploy(device("env"))
    assert caught.value.next_step.endswith("apt-get install python3-venv")
