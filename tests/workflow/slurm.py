"""A real Slurm of one node on this machine, by Debian's packages slurm-wlm and munge.

Everything lies in one folder. Every daemon runs as the user who starts it and listens on this
machine alone; nothing is installed or kept.
"""

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_SECONDS = 30  # to start, and to end

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


def missing_commands() -> list[str]:
    """Slurm's and munge's programs that are not on PATH."""
    return [name for name in COMMANDS if shutil.which(name, path=_PATH) is None]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Cluster:
    """A node that offers 4 CPUs, 64 GB and 2 GPUs, whatever this machine has."""

    def __init__(self, folder: Path):
        self.folder, self.conf = folder.resolve(), folder.resolve() / "slurm.conf"
        paths = {"SLURM_CONF": str(self.conf), "PATH": f"{self.folder}/bin:{_PATH}"}
        self.environment = {**os.environ, **paths}

    def start(self) -> None:
        """Start munged, slurmctld and slurmd; return once the node takes jobs."""
        folder = self.folder
        for name in ("state", "spool", "munge", "bin"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        # munged refuses folders that others may write; the socket must be reached all the same.
        folder.chmod(0o755)
        (folder / "munge").chmod(0o700)
        key = folder / "munge" / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        host, user = socket.gethostname().split(".")[0], getpass.getuser()
        ports = {"ctld": _free_port(), "port": _free_port()}
        self.conf.write_text(_CONF.format(folder=folder, host=host, user=user, **ports))
        # Slurm counts a GPU by its device file and opens none.
        devices = [folder / f"gpu{index}" for index in range(2)]
        for device in devices:
            device.touch()
        lines = (f"Name=gpu File={device}\n" for device in devices)
        (folder / "gres.conf").write_text("".join(lines))
        # Jobs start srun without SLURM_CONF, as a cluster has it in /etc.
        srun = folder / "bin" / "srun"
        srun.write_text(f'#!/bin/sh\nSLURM_CONF={self.conf} exec {shutil.which("srun")} "$@"\n')
        srun.chmod(0o755)
        files = {"key-file": key, "seed-file": folder / "munge" / "seed"}
        files |= {f"{kind}-file": folder / f"munged.{kind}" for kind in ("pid", "log")}
        files["socket"] = folder / "munge.socket"
        # --force: as root, and in a folder below /tmp.
        self._run("munged", "--force", *(f"--{name}={path}" for name, path in files.items()))
        self._run("slurmctld")
        self._run("slurmd", "-N", "node")
        deadline = time.monotonic() + _SECONDS
        while self._run("sinfo", "--noheader", "--Node", "--format=%T", check=False) != "idle":
            if time.monotonic() > deadline:
                raise RuntimeError(f"the node took no jobs; look into {folder}/slurmd.log")
            time.sleep(0.2)

    def stop(self) -> None:
        """Cancel every job and end the daemons."""
        if self.conf.exists():
            self._run("scancel", "--user", getpass.getuser(), check=False)
            deadline = time.monotonic() + _SECONDS
            while self._run("squeue", "--noheader", check=False) and time.monotonic() < deadline:
                time.sleep(0.2)
        for name in ("slurmd", "slurmctld", "munged"):
            _end(self.folder / f"{name}.pid")

    def squeue(self, *arguments: str) -> list[str]:
        """Lines of squeue for all jobs, the ended ones too."""
        return self._run("squeue", "--noheader", "--states=all", *arguments).splitlines()

    def scancel(self, job: str) -> None:
        self._run("scancel", job)

    def _run(self, *command: str, check: bool = True) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout.strip()


def _end(pid_file: Path) -> None:
    """End the daemon that wrote a file with its process; it removes the file as it ends."""
    if not pid_file.exists():
        return
    process = int(pid_file.read_text())
    deadline = time.monotonic() + _SECONDS
    try:
        os.kill(process, signal.SIGTERM)
        while pid_file.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        if pid_file.exists():
            os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        pid_file.unlink(missing_ok=True)
