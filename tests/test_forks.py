"""Jobs forked from one process that has imported their libraries: as if each were its own."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import copy_project, snakemake

from relation.machine import forks

# Says that it began, waits until it may end, and says what SIGTERM or Ctrl-C did to it.
JOB = """
import os, pathlib, signal, sys, time
name, ends = sys.argv[1:]
def told(number, frame):
    print(signal.Signals(number).name, flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, told)
signal.signal(signal.SIGINT, told)
with open(name, "a") as file:
    print(os.getpid(), file=file)
if ends.startswith("-"):
    os.kill(os.getpid(), int(ends[1:]))
while ends == "waits" and not pathlib.Path("go").exists():
    time.sleep(0.01)
print(os.environ["WORD"], os.getcwd(), "string" in sys.modules and "antigravity" not in sys.modules)
sys.exit(0 if ends == "waits" else int(ends))
"""


def until(true: Callable[[], object]) -> None:
    for _ in range(1000):
        if true():
            return
        time.sleep(0.01)
    pytest.fail("it did not come true within 10 s")


class Server:
    """A server and the jobs `job.py` in a folder."""

    def __init__(self, folder: Path, *libraries: str):
        self.folder = folder
        (folder / "job.py").write_text(JOB, encoding="utf-8")
        self.environment = {"PATH": os.environ["PATH"], "WORD": "a"}
        self.address, self.process = forks.start(libraries, self.environment)

    def begin(self, name: str, ends: str, **variables: str) -> subprocess.Popen:
        """Start a job by a shell, as Snakemake does; it leads a process group."""
        return subprocess.Popen(
            f"exec {forks.python(self.address)} -m job {name} {ends}",
            shell=True,
            cwd=self.folder,
            env=self.environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def begun(self, name: str) -> list[int]:
        """The process numbers that a job has had."""
        path = self.folder / name
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def waiting(self, name: str) -> tuple[subprocess.Popen, int]:
        client = self.begin(name, "waits")
        until(lambda: self.begun(name))
        return client, self.begun(name)[0]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path, "string")
    yield server
    (tmp_path / "go").touch()
    server.process.stdin.close()
    server.process.wait(10)
    shutil.rmtree(Path(server.address).parent, ignore_errors=True)


def test_a_job_has_its_folder_environment_streams_and_status(server: Server) -> None:
    for status in (0, 3):
        job = server.begin("one", str(status), TMPDIR="/elsewhere", PS1="(env) $ ", PS2="> ")
        assert job.communicate()[0] == f"a {server.folder} True\n"
        assert job.returncode == status


def test_a_killed_job_takes_no_other_with_it(server: Server) -> None:
    """Its client ends by the same signal, which the shell reports."""
    client, _ = server.waiting("other")
    for number in (signal.SIGKILL, signal.SIGSEGV):
        job = server.begin("killed", f"-{number:d}")
        assert job.wait(10) == -number
    (server.folder / "go").touch()
    assert client.wait(10) == 0 and len(server.begun("other")) == 1


def test_a_job_whose_client_is_killed_is_asked_to_stop(server: Server) -> None:
    client, _ = server.waiting("job")
    client.kill()
    assert client.stdout.read() == "SIGTERM\n"


def test_ctrl_c_reaches_the_job_once(server: Server) -> None:
    """The terminal sends it to every process of Snakemake's group: here to job and client."""
    client, job = server.waiting("job")
    for process in (client.pid, server.process.pid, job):
        os.kill(process, signal.SIGINT)
    assert client.communicate(timeout=10)[0] == "SIGINT\n" and client.returncode == 7
    assert server.begin("next", "0").wait(10) == 0


def test_without_its_server_a_job_begins_again_as_a_process_of_its_own(server: Server) -> None:
    client, first = server.waiting("job")
    server.process.kill()
    until(lambda: len(server.begun("job")) == 2)
    assert server.begun("job") == [first, client.pid]
    until(lambda: not Path(f"/proc/{first}").exists())
    (server.folder / "go").touch()
    said = client.communicate(timeout=10)[0].splitlines()
    assert said[0].startswith("note: ") and said[1] == f"a {server.folder} False"
    later = server.begin("later", "0")
    assert later.communicate(timeout=10)[0].startswith("note: ") and later.returncode == 0


def test_a_job_of_another_environment_is_a_process_of_its_own(server: Server) -> None:
    job = server.begin("other", "0", WORD="b", OMP_NUM_THREADS="2")
    note, said = job.communicate(timeout=10)[0].splitlines()
    assert note.startswith("note: ") and "OMP_NUM_THREADS, WORD" in note
    assert said.startswith("b ") and server.begun("other") == [job.pid]


def test_a_script_is_a_process_of_its_own(server: Server) -> None:
    """A job that starts a server itself runs one: Snakemake in a fork of the tests' server."""
    (server.folder / "script.py").write_text("import sys; print(sys.argv)", encoding="utf-8")
    command = f"exec {forks.python(server.address)} script.py -m x"
    done = subprocess.run(
        command, shell=True, cwd=server.folder, env=server.environment, capture_output=True
    )
    assert done.returncode == 0 and done.stdout == b"['script.py', '-m', 'x']\n"


def test_the_server_ends_with_its_last_job(server: Server) -> None:
    """Snakemake may be killed alone: its jobs go on."""
    client, _ = server.waiting("job")
    server.process.stdin.close()
    with pytest.raises(subprocess.TimeoutExpired):
        server.process.wait(0.1)
    (server.folder / "go").touch()
    assert client.wait(10) == 0 and server.process.wait(10) == 0
    assert not Path(server.address).parent.exists()


def test_modules_of_a_project_are_imported_once_where_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "drawing.py").write_text("open('imported', 'a').write('.')", encoding="utf-8")
    (tmp_path / "job.py").write_text("import drawing", encoding="utf-8")
    environment = {"PATH": os.environ["PATH"]}
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path)
        address, server = forks.start(["drawing"], environment, str(tmp_path))
    for _ in range(2):
        command = f"exec {forks.python(address)} -m job"
        subprocess.run(command, shell=True, cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "imported").read_text(encoding="utf-8") == "."
    server.stdin.close()
    assert server.wait(10) == 0


@pytest.mark.skipif(os.cpu_count() == 1, reason="OpenBLAS starts no thread on one core")
def test_a_process_with_threads_is_not_forked(tmp_path: Path, capfd) -> None:
    environment = dict(os.environ, OPENBLAS_NUM_THREADS="2")
    address, server = forks.start(["numpy"], environment)
    assert server.wait(20) == 1 and "started threads" in capfd.readouterr().err
    with pytest.raises(ConnectionRefusedError):
        forks.ask(address, ("this", [], str(tmp_path), environment, sys.executable), (0, 1, 2))
    shutil.rmtree(Path(address).parent)


@pytest.mark.campaign
def test_jobs_of_a_campaign_that_imports_once_are_forks(tmp_path: Path) -> None:
    project = copy_project(tmp_path / "it's a project")
    config = project / "config.yaml"
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("import_once: false", "import_once: true"), encoding="utf-8")
    # Python imports it when it starts, from the project, which is on a job's path.
    (project / "sitecustomize.py").write_text("open('started', 'a')", encoding="utf-8")
    models = "results/tiny/models.parquet"
    snakemake(project, "--config", "campaign=tiny", "--", models, own_jobs=True)
    assert (project / models).exists() and not (project / "started").exists()
    path = {"PYTHONPATH": str(project)}
    subprocess.run([sys.executable, "-c", ""], cwd=project, env=path, check=True)
    assert (project / "started").exists()
