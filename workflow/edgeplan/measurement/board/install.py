"""Runs on a board, by whatever Python is there, and installs a bundle that comes on standard input.

It imports nothing but the standard library.

It is sent as text: `python -c TEXT probe`, or `python -c TEXT install` with a tar archive. It prints one line of JSON.
What is there already is left alone; what fails leaves the environment that was there before.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile

HOME = os.path.join(os.path.expanduser("~"), ".local", "share", "edgeplan")
LINK = os.path.join(HOME, "environment")
STAMP = "bundle.json"


def installed() -> str:
    """Tell the digest of the bundle that is installed; "" if none is."""
    try:
        with open(os.path.join(LINK, STAMP), encoding="utf-8") as file:
            return str(json.load(file)["digest"])
    except (OSError, ValueError, KeyError):
        return ""


def probe() -> "dict[str, object]":
    """Tell what wheels have to fit, and what is installed."""
    library, version = platform.libc_ver()
    minor = version.split(".")[1] if library == "glibc" and "." in version else "0"
    return {
        "python": list(sys.version_info[:2]),
        "architecture": platform.machine(),
        "glibc": int(minor) if minor.isdigit() else 0,
        "installed": installed(),
    }


def install() -> "dict[str, object]":
    """Install the bundle that standard input holds."""
    os.makedirs(HOME, exist_ok=True)
    incoming = tempfile.mkdtemp(prefix="incoming-", dir=HOME)
    try:
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
            for member in archive:
                name = os.path.basename(member.name)
                if not member.isfile() or name != member.name or name.startswith("."):
                    return {"error": "the bundle holds %r, which is no plain file" % member.name[:200]}
                content = archive.extractfile(member)
                assert content is not None
                with open(os.path.join(incoming, name), "wb") as file:
                    shutil.copyfileobj(content, file)
        return unpacked(incoming)
    except (OSError, tarfile.TarError, ValueError, KeyError) as error:
        return {"error": "%s: %s" % (type(error).__name__, error)}
    finally:
        shutil.rmtree(incoming, ignore_errors=True)


def unpacked(incoming: str) -> "dict[str, object]":
    """Check what was unpacked against its manifest, make an environment of it, and put that in the old one's place."""
    with open(os.path.join(incoming, "manifest.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    for name, wanted in manifest["files"].items():
        with open(os.path.join(incoming, os.path.basename(name)), "rb") as file:
            if hashlib.sha256(file.read()).hexdigest() != wanted:
                return {"error": "the file %s of the bundle is damaged" % name}
    made = os.path.join(HOME, "environment-" + manifest["digest"][:12])
    shutil.rmtree(made, ignore_errors=True)
    tried = subprocess.run([sys.executable, "-m", "venv", made], capture_output=True, text=True)
    if tried.returncode:
        return {"error": "no environment can be made: " + (tried.stdout + tried.stderr).strip()[-400:], "venv": True}
    tried = subprocess.run(
        [os.path.join(made, "bin", "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
        + ["--no-deps", "--require-hashes", "--find-links", incoming, "-r", os.path.join(incoming, "requirements.txt")],
        capture_output=True,
        text=True,
    )
    if tried.returncode:
        shutil.rmtree(made, ignore_errors=True)
        return {"error": "pip failed: " + tried.stderr.strip()[-400:]}
    shutil.copy(os.path.join(incoming, "manifest.json"), os.path.join(made, STAMP))
    fresh = LINK + ".new"
    if os.path.islink(fresh):
        os.unlink(fresh)
    os.symlink(made, fresh)
    os.replace(fresh, LINK)
    for name in os.listdir(HOME):
        if name.startswith("environment-") and os.path.join(HOME, name) != made:
            shutil.rmtree(os.path.join(HOME, name), ignore_errors=True)
    return {"installed": manifest["digest"], "python": os.path.join(LINK, "bin", "python")}


if __name__ == "__main__":
    print(json.dumps(probe() if sys.argv[1] == "probe" else install()))
