"""A Debian with nothing on it: the README's packages and `make` word for word, and the report.

`python -m pytest -m bare` runs it: as root, with mmdebstrap, mounts and network, in half an hour on
two cores. Debian's packages come from this machine's own sources, Python's by its pip settings
and PIP_ variables; BARE_MOUNTS names folders, separated by colons, that these need, to be read.
"""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT

SOURCES = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*.sources")]
CARRIED = [Path("/etc/resolv.conf"), Path("/etc/pip.conf"), Path.home() / ".config/pip/pip.conf"]
HOME = "/root/relation"


def why_not() -> str:
    """Why no Debian can be built here; empty where one can."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [name for name in ("mmdebstrap", "unshare", "chroot") if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    refused = subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode
    return "needs leave to mount" if refused else ""


def commands(heading: str) -> list[str]:
    """The commands of the README's first code block after a text, comments left out."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"```console\n(.*?)```", text[text.index(heading) :], re.DOTALL)[1]
    lines = (line.partition("#")[0].strip() for line in block.splitlines())
    return [line for line in lines if line]


class Machine:
    """A Debian in a folder, in which commands run as in a machine of its own."""

    def __init__(self, root: Path):
        self.root = root
        sources = [str(path) for path in SOURCES if path.is_file()]
        release = platform.freedesktop_os_release()["VERSION_CODENAME"]
        run("mmdebstrap", "--variant=minbase", release, str(root), *sources)
        for path in CARRIED:
            if path.is_file():
                target = root / path.relative_to("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
        given = filter(None, os.environ.get("BARE_MOUNTS", "").split(":"))
        self.mounts = {str(ROOT): "/source"} | {path: path for path in given}
        for place in ("/proc", "/dev", *self.mounts.values()):
            (root / place.lstrip("/")).mkdir(parents=True, exist_ok=True)
        self.pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        if "PIP_CERT" in self.pip:
            shutil.copyfile(self.pip["PIP_CERT"], root / "certificates.pem")
            self.pip["PIP_CERT"] = "/certificates.pem"

    def run(self, command: str) -> str:
        """What a command prints. Its mounts end with it."""
        mounts = [f"mount -t proc proc {self.root}/proc", f"mount --rbind /dev {self.root}/dev"]
        for here, there in self.mounts.items():  # what is installed there must not write here
            mounts.append(f"mount --bind {here} {self.root}{there}")
            mounts.append(f"mount -o remount,bind,ro {self.root}{there}")
        script = " && ".join([*mounts, f'exec chroot {self.root} bash -c "$0"'])
        path = {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        environment = path | self.pip | quiet
        return run("unshare", "--mount", "bash", "-c", script, command, env=environment)


def run(*command: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    yield Machine(tmp_path / "debian")
    shutil.rmtree(tmp_path / "debian")


@pytest.mark.bare
@pytest.mark.skipif(why_not() != "", reason=why_not())
def test_a_bare_debian_gets_the_report(machine: Machine) -> None:
    for command in commands("On a bare Debian"):
        machine.run(command)
    # A clone, of this machine's instead of a server's.
    machine.run(f"git clone -c safe.directory='*' --quiet /source {HOME}")
    make, test = commands("## Two commands")
    assert (make, test) == ("make", "make test")
    printed = machine.run(f"cd {HOME} && {make}")
    assert "Report: results/smoke/report/index.html" in printed
    report = machine.root / HOME.lstrip("/") / "results/smoke/report"
    assert len(list((report / "tables").glob("app-*.html"))) >= 10
    assert "not run" not in (report / "index.html").read_text(encoding="utf-8")
