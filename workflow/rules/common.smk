"""Common to all rules: params.yaml and its check, the environment of the commands, and the functions that the Snakefile calls."""

import os
import sys
from pathlib import Path

from snakemake.utils import min_version

min_version("9.0")


configfile: "params.yaml"


# The commands run in the environment that runs Snakemake (.venv, made from the hashed lock); this names its base.
container: "docker://python:3.11-slim"


# Commands import the package of this checkout, also in a clone or an experiment's workspace that shares the environment.
os.environ.update(PYTHONPATH=os.path.abspath("workflow"))
sys.path.insert(0, os.path.abspath("workflow"))

from edgeplan.chapters.base import expanded
from edgeplan.chapters.check import check_params, refuse_overlay
from edgeplan.chapters.registry import (
    CHAPTERS,
    STAGES,
    merged_figures,
    parts_of_report,
)
from edgeplan.chapters.running import HOLDER, held
from edgeplan.devices.config import is_here, machine_of
from edgeplan.errors import EdgeplanError
from edgeplan.support import lifeline, termination
from edgeplan.support.subprocesses import program_command, run

# Commands end with this process, and it with what started it; SIGTERM ends them instead of waiting for them.
if "SLURM_JOB_ID" in os.environ:
    os.environ.pop(lifeline.VARIABLE, None)  # of a process on another machine
termination.end_descendants_on_sigterm()
termination.end_with_starter()
lifeline.end_with_holder(asked=True)
os.environ[lifeline.VARIABLE] = lifeline.address()


# As DVC's stage `check` does it, before a missing file is met.
try:
    check_params(Path("params.yaml"))
    refuse_overlay(config, Path("params.yaml"))
except EdgeplanError as error:
    sys.exit(f"error: {error}")


wildcard_constraints:
    **{
        name: "[a-z0-9]+(-[a-z0-9]+)*"
        for stage in STAGES
        if stage.targets
        for name in stage.targets.wildcards
    },


def cores_taken(wildcards):
    """What measures on this machine takes all its cores, so that nothing disturbs it; what measures on a board, one."""
    return workflow.cores if is_here(wildcards.device) else 1


def measuring_here(wildcards):
    """One device of this machine is measured at a time (profiles/default); boards have a lock of their own."""
    return int(is_here(wildcards.device))


def machine_asked(wildcards):
    """The generic resource that a job asks a cluster for: one of each physical machine (profiles/slurm)."""
    return f"device:{machine_of(wildcards.device)}:1"


def hold_workspace():
    """Let one run at a time build in this folder: until this process ends, however it ends.

    Jobs that a cluster starts for this process are told that they belong to it.
    """
    holding = held(wait=False)
    try:
        holding.__enter__()
    except EdgeplanError as error:
        sys.exit(f"error: {error}")
    os.environ.setdefault(HOLDER, str(os.getpid()))
    return holding


def tracked_as_current():
    """Whether DVC, which compares contents, would run no stage; time stamps do not survive a clone or a checkout.

    What only its cache holds (predictors, the page) may be missing. Without DVC nobody knows, and time stamps decide.
    """
    tried = run(program_command("dvc", "repro", "--dry", "--allow-missing"))
    return tried.returncode == 0 and b"Running stage" not in tried.stdout


def rows_of_all_devices():
    """What the stages of every chapter write that measure devices and pairs of params.yaml."""
    return outputs_of([stage for stage in STAGES if stage.rows])


def outputs_of_all_stages():
    """What the stages write for all targets in params.yaml."""
    return outputs_of(STAGES)


def outputs_of(stages):
    """What some stages write for their targets in params.yaml."""
    return [
        path
        for stage in stages
        for output in stage.outputs.values()
        for path in expanded(output, stage.targets, config)
    ]


def made_here(pattern):
    """A file that a stage reads where another one makes it: made first, or it would measure again once there is one."""
    made = set(outputs_of_all_stages())
    return ancient(
        lambda wildcards: [
            path for path in [pattern.format(**wildcards)] if path in made
        ]
    )
