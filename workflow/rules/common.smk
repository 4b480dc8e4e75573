"""What every stage shares: params.yaml, the environment of the scripts, and the functions that Snakefiles may call."""

import fcntl
import os
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

from edgeplan.support import lifeline, termination
from edgeplan.support.subprocesses import program_command, run

# What runs the scripts ends with what started it, and they with it; SIGTERM ends them instead of waiting for them.
run_by_dvc = termination.STARTED_BY in os.environ
termination.end_descendants_on_sigterm()
termination.end_with_starter()
lifeline.end_with_holder(asked=True)
os.environ[lifeline.VARIABLE] = lifeline.address()


def sections(names):
    """The named sections of params.yaml, or keys of one: what a stage depends on, the same as in dvc.yaml."""
    missing = [name for name in names if name.split(".")[0] not in config]
    if missing:
        raise WorkflowError(
            f"params.yaml has no section {missing[0]!r}: compare with the committed one (git diff params.yaml)"
        )
    return {
        name: reduce(lambda part, key: part[key], name.split("."), config)
        for name in names
    }


def hold_workspace(wait):
    """Let one Snakemake at a time build in this folder; the system frees the lock when this process ends, however it ends."""
    lock = open(".snakemake.lock", "a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise WorkflowError(
            "another run is building in this folder (it holds .snakemake.lock); wait for it to end, then run this command again"
        )
    return lock


def tracked_as_current():
    """Whether DVC, which compares contents, would run no stage; time stamps do not survive a clone or a checkout.

    What only its cache holds (predictors, the page) may be missing. Without DVC nobody knows, and time stamps decide.
    """
    tried = run(program_command("dvc", "repro", "--dry", "--allow-missing"))
    return tried.returncode == 0 and b"Running stage" not in tried.stdout


# The stages of a `dvc repro` wait for each other and for who builds the whole graph.
held_by_stage = hold_workspace(wait=True) if run_by_dvc else None
