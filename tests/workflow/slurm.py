"""A real Slurm with one node on this machine, from Debian's packages slurm-wlm and munge.

All files are in one folder. Every daemon runs as the user who starts it and listens only on this
machine. Nothing is installed or kept.
"""

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from conftest import until

PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo")
MISSING = [name for name in COMMANDS if shutil.which(name, path=PATH) is None]
_CONF = """
ClusterName=relation
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
SlurmctldPort={ctld}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
GresTypes=gpu
# Ended jobs stay in squeue so long: without accounting there is no other word of them.
MinJobAge=600
KillWait=20
ReturnToService=2
SlurmctldTimeout=30
SchedulerParameters=sched_interval=2,batch_sched_delay=0,sched_min_interval=100000
NodeName=node NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=64000 Gres=gpu:2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[Callable[..., list[str]], dict[str, str]]]:
    """Run a node that offers 4 CPUs, 64 GB and 2 GPUs, even if this machine has less.

    Yields a function that runs a Slurm command and returns its lines, and the environment it uses.
    """
    paths = {"SLURM_CONF": f"{folder}/slurm.conf", "PATH": f"{folder}/bin:{PATH}"}
    environment = {**os.environ, **paths}

    def run(*command: str) -> list[str]:
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout}")
        return done.stdout.splitlines()

    for name in ("state", "spool", "munge", "bin"):
        (folder / name).mkdir(parents=True)
    # munged refuses folders that others can write, but all must be able to reach its socket.
    folder.chmod(0o755)
    (folder / "munge").chmod(0o700)
    key = folder / "munge" / "key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        ctld, port = (each.getsockname()[1] for each in (one, two))
    host = socket.gethostname().split(".")[0]
    own = {"folder": folder, "host": host, "user": getpass.getuser(), "ctld": ctld, "port": port}
    (folder / "slurm.conf").write_text(_CONF.format(**own))
    for index in range(2):  # Slurm counts device files of GPUs but opens none
        (folder / f"gpu{index}").touch()
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-1]\n")
    # Jobs start srun without SLURM_CONF, because a cluster has its configuration in /etc.
    srun = folder / "bin" / "srun"
    srun.write_text(f'#!/bin/sh\nSLURM_CONF={folder}/slurm.conf exec {shutil.which("srun")} "$@"\n')
    srun.chmod(0o755)
    files = {"key-file": key, "seed-file": folder / "munge" / "seed"}
    files |= {f"{kind}-file": folder / f"munged.{kind}" for kind in ("pid", "log")}
    files["socket"] = folder / "munge.socket"
    try:
        # --force allows root, and a folder below /tmp.
        run("munged", "--force", *(f"--{name}={path}" for name, path in files.items()))
        run("slurmctld")
        run("slurmd", "-N", "node")
        until(lambda: run("sinfo", "--noheader", "--Node", "--format=%T") == ["idle"], 30)
        yield run, environment
    finally:
        with suppress(RuntimeError):
            run("scancel", "--user", getpass.getuser())
            until(lambda: not run("squeue", "--noheader"), 30)
        for name in ("slurmd", "slurmctld", "munged"):
            with suppress(FileNotFoundError, ProcessLookupError):
                os.kill(int((folder / f"{name}.pid").read_text()), signal.SIGTERM)
