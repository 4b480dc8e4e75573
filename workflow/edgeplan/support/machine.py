"""This module identifies the machine and its state: the fingerprint that keys rows, and the environment kept with them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import edgeplan
from edgeplan.support.files import state_folder, write_text
from edgeplan.support.lazy import lazily, sha256

if TYPE_CHECKING:
    import platform
    import subprocess
    import uuid
else:  # who runs plans knows this machine by its file
    platform, subprocess, uuid = map(lazily, ("platform", "subprocess", "uuid"))


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def cpu_info() -> dict[str, str]:
    """Return the name, family and ISA flags of the first processor (Linux; elsewhere what `platform` tells)."""
    fields: dict[str, str] = {}
    for line in _read("/proc/cpuinfo").splitlines():
        if not line.strip():
            break
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    wanted = ("vendor_id", "model name", "cpu family", "model", "stepping", "flags", "CPU implementer", "CPU part", "Features")
    return {k: fields[k] for k in wanted if k in fields} or {"model name": platform.processor()}


def cache_sizes() -> list[str]:
    """Return caches of the first core, e.g. ["1 Data 48K", ...]."""
    folders = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"))
    return [" ".join(_read(str(folder / part)) for part in ("level", "type", "size")) for folder in folders]


def last_cache_bytes(caches: Sequence[str]) -> int:
    """Return the size of the first core's last cache, of caches as `environment` tells them; 32 MiB where it tells none."""
    sizes = [size for one in caches if (size := one.split()[-1]).endswith("K") and size[:-1].isdigit()]
    return 1024 * int(sizes[-1][:-1]) if sizes else 32 << 20


def machine_id() -> str:
    """Return the id that the system gave this machine, or, where it gave none, one drawn once and kept in the state folder."""
    given = _read("/etc/machine-id") or _read("/var/lib/dbus/machine-id")
    if given:
        return given
    kept = state_folder() / "machine-id"
    if not _read(str(kept)):
        write_text(kept, f"{uuid.uuid4().hex}\n")
    return _read(str(kept))


def machine_text() -> str:
    """Return what a plan's program says of the machine that it is for: `native/src/library/machine.cpp` makes the same text."""
    told = [f"{name}={value}" for name, value in cpu_info().items()]
    return "\n".join([*told, *cache_sizes(), f"{os.cpu_count()} {os.uname().machine}", machine_id()])


def fingerprint() -> str:
    """Return the digest of this machine: processor, caches, cores and machine id. Rows of another machine never match it."""
    parts: dict[str, Any] = {
        "cpu": cpu_info(),
        "caches": cache_sizes(),
        "cores": os.cpu_count(),
        "arch": platform.machine(),
        "machine": machine_id(),
    }
    digest: str = sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return digest[:16]


#: What machines of one kind have in common, of `environment`; ids, memory, kernel and load are each machine's own.
_OF_KIND = ("cpu", "cpu_family_model", "isa", "cores", "caches")


def machine_kind(told: Mapping[str, Any]) -> str:
    """Return the digest of a kind of machine, by its `environment`: same processor, caches and number of cores."""
    parts = {name: told[name] for name in _OF_KIND}
    return str(sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest())[:16]


def emulated() -> bool:
    """Tell whether this processor is another one's imitation: an Arm interpreter that the kernel tells an x86 processor."""
    architecture, fields = platform.machine(), cpu_info()
    if architecture.startswith(("aarch64", "arm", "riscv", "ppc", "s390")):
        return "vendor_id" in fields and "flags" in fields
    return "QEMU TCG" in fields.get("model name", "")


def memory_bytes() -> int:
    """Return the physical memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def environment() -> dict[str, Any]:
    """Return the state of the machine worth keeping beside rows; names no host, user or path."""
    info = cpu_info()
    frequency = "/sys/devices/system/cpu/cpu0/cpufreq"
    return {
        "cpu": info.get("model name", ""),
        "cpu_family_model": f"{info.get('cpu family', '')}/{info.get('model', '')}",
        "isa": sorted(f for f in info.get("flags", "").split() if f.startswith(("avx", "amx", "fma", "sse4"))),
        "cores": os.cpu_count(),
        "affinity": sorted(os.sched_getaffinity(0)),
        "caches": cache_sizes(),
        "memory_gib": round(memory_bytes() / 2**30, 1),
        "governor": _read(f"{frequency}/scaling_governor") or "not exposed",
        "max_frequency_khz": _read(f"{frequency}/scaling_max_freq") or "not exposed",
        "virtualised": "hypervisor" in info.get("flags", ""),
        "load_1min": round(os.getloadavg()[0], 2),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "fingerprint": fingerprint(),
    }


NOT_RECORDED = "not recorded"
#: Marks a commit whose measuring code, the package, was changed without being committed.
CHANGED = "+changes"


def source_commit() -> str:
    """Return the git commit of the package, e.g. "1a3dce2f90ab", marked where files of it were changed since.

    It is "not recorded" where the package is not in a git repository or git is not installed.
    """
    package = Path(edgeplan.__file__).parent
    tracked = _git(package, "ls-files", "--error-unmatch", "__init__.py")  # not so below an environment in another repository
    commit, changes = _git(package, "rev-parse", "--short=12", "HEAD"), _git(package, "status", "--porcelain", "--", ".")
    if not tracked or not commit or changes is None:
        return NOT_RECORDED
    return commit + (CHANGED if changes else "")


def _git(folder: Path, *arguments: str) -> str | None:
    """Return git's answer, None where it fails; it takes no lock that a commit of the user would wait for."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
