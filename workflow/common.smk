"""What every stage shares: params.yaml, the environment of the scripts, and the functions that Snakefiles may call."""

import fcntl
import os
import subprocess

from snakemake.utils import min_version

min_version("9.0")


configfile: "params.yaml"


# The scripts run in the environment that runs Snakemake (.venv, made from the hashed lock); this names its base.
container: "docker://python:3.11-slim"


wildcard_constraints:
    device="[a-z0-9]+(-[a-z0-9]+)*",


# Scripts import the package of this checkout, also in a clone or an experiment's workspace that shares the environment.
os.environ.update(PYTHONPATH=os.path.abspath("workflow"))
os.environ.pop("EDGEPLAN_WORKSPACE", None)  # what is built here is of this workspace


def sections(*names):
    """The named sections of params.yaml: what a stage depends on, the same as in dvc.yaml."""
    missing = [name for name in names if name not in config]
    if missing:
        raise WorkflowError(
            f"params.yaml has no section {missing[0]!r}: compare with the committed one (git diff params.yaml)"
        )
    return {name: config[name] for name in names}


def for_devices(pattern):
    """A file of every device in params.yaml."""
    return expand(pattern, device=config["devices"])


def for_cold_devices(pattern):
    """A file of every device on which cold starts are measured."""
    return expand(pattern, device=config["cold_start"]["devices"])


def chapters_of(wildcards):
    """What the report of a device takes in: its figures of merit, and the chapter on cold starts where there is one."""
    folder = f"results/{wildcards.device}/chapters"
    cold = wildcards.device in config["cold_start"]["devices"]
    unseen = wildcards.device in config["unseen"]["devices"]
    return (
        [f"{folder}/prediction.json"]
        + ([f"{folder}/unseen.json"] if unseen else [])
        + ([f"{folder}/cold_start.json", f"{folder}/cold_start.page.json"] if cold else [])
    )


def hold_workspace():
    """Keep the stages of a `dvc repro` in this folder waiting while the whole graph is built, and say so when one is running."""
    lock = open(".snakemake.lock", "a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise WorkflowError(
            "another run is building in this folder (it holds .snakemake.lock); wait for it to end, then run this command again"
        )
    return lock


def tracked_as_current():
    """Whether DVC, which compares contents, finds every stage up to date; time stamps do not survive a clone or a checkout."""
    status = subprocess.run(
        ["dvc", "status", "--quiet"], check=False, capture_output=True
    )
    return status.returncode == 0
