"""The example of an audit in a CI service: its command runs, and its kernel keeps its contract."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples" / "audit_in_ci"


def copied(tmp_path):
    return Path(shutil.copytree(FOLDER, tmp_path / "example", ignore=shutil.ignore_patterns("__pycache__")))


def run(command, folder):
    # The command is the one that is installed beside this Python.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_command_of_the_workflow_finds_nothing_and_writes_its_files(tmp_path):
    folder = copied(tmp_path)
    workflow = (folder / "attention-audit.yml").read_text()
    command = shlex.split(" ".join(re.search(r"run: >-\n((?:          .*\n)+)", workflow)[1].split()))
    assert command[:2] == ["softcarry", "audit"]
    done = run([*command, "--quick"], folder)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("audit.sarif", "audit.xml", "audit.html", "audit.json"):
        assert (folder / name).stat().st_size > 0


def test_its_test_passes_and_fails_when_the_kernel_is_broken(tmp_path):
    folder = copied(tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = run(command, folder)
    assert done.returncode == 0, done.stdout
    kernel = folder / "my_kernel.py"
    text = kernel.read_text()
    assert "o = o * kept" in text
    kernel.write_text(text.replace("o = o * kept", "o = o"))  # forgets to rescale the output
    done = run(command, folder)
    assert done.returncode == 1
    assert "the attention kernel 'attention' is wrong" in done.stdout
