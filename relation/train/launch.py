"""How torchrun starts the processes of one run: its options, on one node or on several."""

import os
import socket
from collections.abc import Mapping

from relation.errors import InputError

# By itself torchrun has the processes of one machine find one another by the machine's name, which
# not every machine can resolve.
_ON_THIS_NODE = ("--standalone", "--local-addr", "127.0.0.1")
_PORTS = range(20000, 30000)  # below those that systems hand out


def torchrun_options(
    processes: int,
    nodes: int = 1,
    rendezvous: str | None = None,
    name: str = "",
    environment: Mapping[str, str] = os.environ,
) -> list[str]:
    """torchrun's options for `processes` in all, as many on each of `nodes`.

    rendezvous: HOST:PORT of the first node, the same on all; where srun started this process, None
    is the node on which srun was called. name: the run's. Raises InputError for processes that do
    not divide among the nodes, or where nothing says where they meet.
    """
    if processes % nodes:
        raise InputError(
            f"--processes {processes} do not divide among --nodes {nodes}; give a multiple of it"
        )
    on_each = ["--nproc-per-node", str(processes // nodes)]
    if nodes == 1 and rendezvous is not None:
        raise InputError(f"--rendezvous {rendezvous} is for several nodes; give --nodes too")
    if nodes == 1:
        return [*_ON_THIS_NODE, *on_each]
    meeting = [] if rendezvous is None else ["--rdzv-endpoint", rendezvous]
    if rendezvous is None:
        rendezvous, first = _of_slurm(environment)
        meeting = ["--rdzv-endpoint", rendezvous, "--rdzv-conf", f"is_host={first}"]
    address = _own_address(rendezvous)
    meeting += ["--local-addr", address] if address else []
    named = ["--rdzv-id", name.replace("/", "-")]  # torchrun makes a folder of it
    return ["--nnodes", str(nodes), "--rdzv-backend", "c10d", *named, *meeting, *on_each]


def _of_slurm(environment: Mapping[str, str]) -> tuple[str, bool]:
    """Where the tasks of a job step meet, and whether this is the first of them."""
    try:
        host, node = environment["SLURM_LAUNCH_NODE_IPADDR"], environment["SLURM_NODEID"]
        job = int(environment["SLURM_JOB_ID"])
    except KeyError:
        raise InputError(
            "--nodes needs --rendezvous HOST:PORT, a free port of the first node and the same on "
            "all, unless srun starts the command on each of them"
        ) from None
    # Two jobs that share the first node have ports of their own.
    return f"{host}:{_PORTS[job % len(_PORTS)]}", node == "0"


def _own_address(rendezvous: str) -> str | None:
    """This node's address as the others see it; None leaves it to the name of the machine.

    Raises InputError for a rendezvous that is no HOST:PORT or whose host is not known.
    """
    host, _, port = rendezvous.rpartition(":")
    if not (host and port.isdecimal()):
        raise InputError(f"--rendezvous {rendezvous}: give HOST:PORT, as node1:29400")
    try:
        # Nothing is sent: the system only chooses the interface towards that host.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, int(port)))
            address = probe.getsockname()[0]
    except OSError as error:
        reason = error.strerror or error
        raise InputError(
            f"--rendezvous {rendezvous}: {host} cannot be reached ({reason}); give the name or "
            "address of the first node"
        ) from None
    # A machine may know itself by a loopback address, where nobody else finds it.
    own = address.startswith("127.") and host not in ("localhost", address)
    return None if own else address
