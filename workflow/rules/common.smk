"""What every stage shares: params.yaml, the environment of the scripts, and the functions that Snakefiles may call."""

import fcntl
import os
import subprocess
import sys
from functools import reduce

from snakemake.utils import min_version

min_version("9.0")


configfile: "params.yaml"


# The scripts run in the environment that runs Snakemake (.venv, made from the hashed lock); this names its base.
container: "docker://python:3.11-slim"


# Scripts import the package of this checkout, also in a clone or an experiment's workspace that shares the environment.
os.environ.update(PYTHONPATH=os.path.abspath("workflow"))
os.environ.pop("EDGEPLAN_WORKSPACE", None)  # what is built here is of this workspace
sys.path.insert(0, os.path.abspath("workflow"))


def sections(names):
    """The named sections of params.yaml, or keys of one: what a stage depends on, the same as in dvc.yaml."""
    missing = [name for name in names if name.split(".")[0] not in config]
    if missing:
        raise WorkflowError(
            f"params.yaml has no section {missing[0]!r}: compare with the committed one (git diff params.yaml)"
        )
    return {name: reduce(lambda part, key: part[key], name.split("."), config) for name in names}


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
    """Whether DVC, which compares contents, would run no stage; time stamps do not survive a clone or a checkout.

    What only its cache holds (predictors, the page) may be missing. Without DVC nobody knows, and time stamps decide.
    """
    try:
        tried = subprocess.run(
            ["dvc", "repro", "--dry", "--allow-missing"],
            check=False,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        return False
    return tried.returncode == 0 and "Running stage" not in tried.stdout
