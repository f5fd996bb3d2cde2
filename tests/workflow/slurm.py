"""A real Slurm of one node or more on this machine, for the tests and for a look by hand.

    python tests/workflow/slurm.py start FOLDER   prints the environment that Slurm's commands need
    python tests/workflow/slurm.py stop FOLDER

Needs Debian's packages slurm-wlm and munge. Everything lies in FOLDER, every daemon runs as the
user who starts it and listens on this machine alone; nothing is installed or kept.
"""

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
COMMANDS = (*DAEMONS, "sbatch", "squeue", "scancel", "sinfo")
_SECONDS_TO_START, _SECONDS_TO_END = 30, 30
_CPUS, _MEMORY_MB, _GPUS = 4, 64000, 2

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
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
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
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
    "CPUs={cpus} RealMemory={memory} Gres=gpu:{gpus} State=UNKNOWN"
)


def missing_commands() -> list[str]:
    """Slurm's and munge's programs that are not on PATH."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return [name for name in COMMANDS if shutil.which(name, path=path) is None]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Cluster:
    """Nodes that offer 4 CPUs, 64 GB and 2 GPUs each, whatever this machine has."""

    def __init__(self, folder: Path, nodes: int = 1):
        self.folder = folder.resolve()
        self.nodes = [f"node{number}" for number in range(1, nodes + 1)]
        self.exports = {
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "PATH": f"{self.folder}/bin:{os.environ.get('PATH', '')}:/usr/sbin:/sbin",
        }
        self.environment = {**os.environ, **self.exports}

    def start(self) -> None:
        """Start munged, slurmctld and a slurmd a node; return once all take jobs."""
        folder = self.folder
        for name in ("state", "spool", "munge", "bin"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        # munged refuses folders that others may write; the socket must be reached all the same.
        folder.chmod(0o755)
        (folder / "munge").chmod(0o700)
        key = folder / "munge" / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        host = socket.gethostname().split(".")[0]
        offered = {"host": host, "cpus": _CPUS, "memory": _MEMORY_MB, "gpus": _GPUS}
        lines = [_NODE.format(name=name, port=_free_port(), **offered) for name in self.nodes]
        conf = _CONF.format(
            folder=folder,
            host=host,
            user=getpass.getuser(),
            ctld=_free_port(),
            nodes="\n".join(lines),
        )
        (folder / "slurm.conf").write_text(conf, encoding="utf-8")
        # Slurm counts a GPU by its device file and opens none.
        devices = [folder / f"gpu{index}" for index in range(_GPUS)]
        for device in devices:
            device.touch()
        gres = "".join(f"Name=gpu File={device}\n" for device in devices)
        (folder / "gres.conf").write_text(gres, encoding="utf-8")
        # Jobs start srun without SLURM_CONF, as a cluster has it in /etc.
        srun = folder / "bin" / "srun"
        conf_file, real = self.exports["SLURM_CONF"], shutil.which("srun")
        srun.write_text(f'#!/bin/sh\nSLURM_CONF={conf_file} exec {real} "$@"\n', encoding="utf-8")
        srun.chmod(0o755)
        self._run(
            "munged",
            "--force",  # root, and a folder below /tmp
            f"--key-file={key}",
            f"--socket={folder}/munge.socket",
            f"--pid-file={folder}/munged.pid",
            f"--log-file={folder}/munged.log",
            f"--seed-file={folder}/munge/seed",
        )
        self._run("slurmctld")
        for name in self.nodes:
            self._run("slurmd", "-N", name)
        deadline = time.monotonic() + _SECONDS_TO_START
        states = ("sinfo", "--noheader", "--Node", "--format=%T")
        while self._run(*states, check=False).split() != ["idle"] * len(self.nodes):
            if time.monotonic() > deadline:
                raise RuntimeError(f"a node took no jobs; look into {folder}/node*.log")
            time.sleep(0.2)

    def stop(self) -> None:
        """Cancel every job and end the daemons."""
        if (self.folder / "slurm.conf").exists():
            self._run("scancel", "--user", getpass.getuser(), check=False)
            deadline = time.monotonic() + _SECONDS_TO_END
            while self._run("squeue", "--noheader", check=False) and time.monotonic() < deadline:
                time.sleep(0.2)
        for name in (*self.nodes, "slurmctld", "munged"):
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
    deadline = time.monotonic() + _SECONDS_TO_END
    try:
        os.kill(process, signal.SIGTERM)
        while pid_file.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        if pid_file.exists():
            os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        pid_file.unlink(missing_ok=True)


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[0] not in ("start", "stop"):
        print("usage: python tests/workflow/slurm.py start|stop FOLDER", file=sys.stderr)
        return 2
    if missing_commands():
        needed = ", ".join(missing_commands())
        print(f"error: {needed} missing; apt-get install slurm-wlm munge", file=sys.stderr)
        return 2
    cluster = Cluster(Path(arguments[1]))
    if arguments[0] == "stop":
        cluster.stop()
    else:
        cluster.start()
        print("export", *(f"{name}={value}" for name, value in cluster.exports.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
