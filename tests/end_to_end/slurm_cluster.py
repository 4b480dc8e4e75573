"""A SLURM cluster of one node for tests: munged, slurmctld and slurmd, with one generic resource for each machine."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "nsenter", "unshare")
_CPUS = 8
_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort=16817
SlurmdPort=16818
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MinJobAge=3600
SlurmdParameters=config_overrides
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1
GresTypes=device
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=8000 Gres={gres} State=UNKNOWN
PartitionName=farm Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def lacking() -> str:
    """The reason why there can be no cluster here; "" if there can."""
    if os.geteuid() != 0:
        return "a cluster of one node takes root"
    missing = [name for name in _PROGRAMS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if find_spec("snakemake_executor_plugin_slurm") is None:
        return "not installed: snakemake-executor-plugin-slurm"
    return "" if any(Path("/sys/fs/cgroup").iterdir()) else "nothing is mounted on /sys/fs/cgroup"


@contextlib.contextmanager
def slurm_cluster(folder: Path, machines: Sequence[str]) -> Iterator[list[str]]:
    """Run a cluster; gives the words before a command that has it find the cluster.

    Its configuration stands in /etc/slurm for these commands alone: jobs are told of no other place.

    Args:
        folder: of its files.
        machines: names of the generic resources, of which there is one each.
    """
    host = platform.node().partition(".")[0]
    for name in ("state", "spool"):
        (folder / name).mkdir()
    gres = ",".join(f"device:{name}:1" for name in machines)
    (folder / "slurm.conf").write_text(_CONFIGURATION.format(host=host, folder=folder, cpus=_CPUS, gres=gres))
    (folder / "gres.conf").write_text("".join(f"Name=device Type={name} Count=1\n" for name in machines))
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    mounted = folder / "mounted"
    mount = f"mount --bind {folder} /etc/slurm && touch {mounted} && exec sleep infinity"
    holder = subprocess.Popen(["unshare", "-m", "sh", "-c", mount])
    inside = ["nsenter", "-t", str(holder.pid), "-m"]
    munge = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    munge += [f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed"]
    started = [holder]
    try:
        while not mounted.exists():
            assert holder.poll() is None, "nothing can be mounted"
            time.sleep(0.05)
        for command in (munge, ["slurmctld", "-D", "-i"], ["slurmd", "-D"]):
            with (folder / f"{command[0]}.out").open("wb") as told:
                started.append(subprocess.Popen([*inside, *command], env=environment, stdout=told, stderr=told))
            time.sleep(1.0)
        _wait_for_node(inside, folder)
        yield inside
    finally:
        for process in reversed(started):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for_node(inside: Sequence[str], folder: Path) -> None:
    end, told = time.monotonic() + 60, ""
    while "idle" not in told:
        assert time.monotonic() < end, f"{told}\n{''.join(path.read_text() for path in folder.glob('*.log'))[-3000:]}"
        time.sleep(0.5)
        done = subprocess.run([*inside, "sinfo", "-h", "-o", "%t"], capture_output=True, text=True, check=False)
        told = done.stdout + done.stderr
