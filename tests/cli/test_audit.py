"""``softcarry audit`` and ``softcarry subjects``: output, exit status, bad input."""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import softcarry.auditing._events as events
from json_schema import violations
from softcarry.auditing import subjects as subjects_module
from softcarry.auditing.probes import CHECKS
from softcarry.auditing.subjects import KNOWN, _table
from softcarry.cli import main
from softcarry.report.model import Report

SCHEMA_FILE = json.loads(Path(__file__, "../../../docs/report-schema.json").resolve().read_text())

SOURCE = """
import os
import numpy as np
import time
from mutants import Online, TwoPass, plain

online = Online()
sound = TwoPass()
lse_zero = TwoPass(empty_lse=0.0)

def raises(q, k, v):
    raise RuntimeError("out of luck")

def dies(q, k, v):
    os.kill(os.getpid(), 9)

def sleeps(q, k, v):
    time.sleep(3600)

def talks(q, k, v):
    print("said in Python")
    os.write(1, b"said below it\\n")
    return plain(q, k, v)

def wrong_shape(q, k, v):
    return np.zeros(3, np.float32)

number = 3
"""


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """A folder with somebody's kernels, as the current one."""
    (tmp_path / "my_kernels.py").write_text(SOURCE)
    (tmp_path / "my_broken.py").write_text("1 // 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(tmp_path)])
    yield tmp_path
    for name in ("my_kernels", "my_broken"):
        sys.modules.pop(name, None)


@pytest.fixture
def quick(monkeypatch):
    """Probes that find nothing, but an error in the control and a warning in torch's math path.

    They are those of this process, where the kernels are called with --same-process.
    """

    def probe(examination):
        if examination.subject.control:
            examination.fail("bad", evidence={}, remedy="mend")
        if examination.subject.name == "torch-sdpa-math":
            examination.warn("odd", evidence={}, remedy="look")
        examination.calls += 1

    monkeypatch.setattr(events, "load_probe", lambda check: probe)


def run(capsys, *tokens):
    status = main(list(tokens))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.usefixtures("own_folder")
def test_a_sound_kernel_of_ones_own_passes(capsys):
    status, out, err = run(capsys, "audit", "my_kernels:sound", "--only", "LSE")
    assert (status, err) == (0, "")
    assert "my_kernels:sound: nothing found" in out


@pytest.mark.usefixtures("own_folder")
def test_a_wrong_kernel_of_ones_own_fails(capsys):
    status, out, _ = run(capsys, "audit", "my_kernels:lse_zero", "--only", "LSE")
    assert status == 1
    assert "a part without keys has weight in a merge: its lse is 0" in out


@pytest.mark.usefixtures("own_folder")
def test_json_follows_the_schema_and_is_all_there_is(capsys):
    status, out, err = run(
        capsys, "audit", "my_kernels:lse_zero", "my_kernels:sound", "--only", "LSE", "--json"
    )
    assert (status, err) == (1, "")
    content = json.loads(out)
    assert content["schema"] == "softcarry.audit/1"
    assert [report["ok"] for report in content["reports"]] == [False, True]
    assert all(violations(report, SCHEMA_FILE) == [] for report in content["reports"])


@pytest.mark.usefixtures("own_folder")
def test_options_may_stand_before_the_subjects(capsys):
    status, out, _ = run(capsys, "audit", "--only", "LSE", "--dtype", "float32", "my_kernels:sound")
    assert status == 0
    assert "my_kernels:sound: nothing found" in out


@pytest.mark.usefixtures("own_folder")
def test_what_a_kernel_prints_is_no_part_of_the_report(capfd):
    status, out, err = run(capfd, "audit", "my_kernels:talks", "--only", "REF", "--json")
    assert status == 0
    assert json.loads(out)["reports"][0]["ok"]
    assert "said in Python" in err
    assert "said below it" in err


@pytest.mark.usefixtures("quick")
def test_without_arguments_all_are_audited_and_the_control_is_not_counted(capsys):
    status, out, _ = run(capsys, "audit", "--same-process")
    assert status == 0
    chosen = {name for name, entry in KNOWN.items() if entry.available and not entry.slow}
    assert all(name in out for name in chosen)
    assert f"{len(CHECKS)} errors (a control, not counted)" in out


@pytest.mark.usefixtures("quick")
def test_warnings_count_when_asked(capsys):
    asked = ("audit", "torch-sdpa-math", "--dtype", "float32", "--same-process")
    assert run(capsys, *asked)[0] == 0
    assert run(capsys, *asked, "--fail-on", "warning")[0] == 1
    assert run(capsys, *asked, "--fail-on", "warning", "--exit-zero")[0] == 0


@pytest.mark.usefixtures("quick")
def test_dtype_and_checks_are_chosen(capsys):
    _, out, _ = run(
        capsys,
        "audit",
        "--dtype",
        "bfloat16,float16",
        "--only",
        "LSE",
        "--only",
        "REF",
        "--skip",
        "REF",
        "--json",
        "--seed",
        "3",
        "--same-process",
    )
    reports = json.loads(out)["reports"]
    assert [r["subject"]["name"] for r in reports] == [
        name
        for name, entry in KNOWN.items()
        if entry.available and not entry.slow and {"bfloat16", "float16"} & set(entry.dtypes)
    ]
    assert all(set(r["subject"]["dtypes"]) <= {"bfloat16", "float16"} for r in reports)
    assert all({v["check"] for v in r["verdicts"]} == {"LSE"} for r in reports)
    assert reports[0]["environment"]["seed"] == 3


@pytest.mark.usefixtures("quick")
def test_what_is_not_installed_is_said_and_left_out(capsys, monkeypatch):
    monkeypatch.setattr(_table, "find_spec", lambda name: None)
    status, out, err = run(capsys, "audit", "--json", "--same-process")
    assert status == 0
    names = [r["subject"]["name"] for r in json.loads(out)["reports"]]
    assert names == [name for name, entry in KNOWN.items() if not entry.requires]
    assert "softcarry" in names
    (line,) = [line for line in err.splitlines() if "torch-sdpa-flash" in line]
    assert line.startswith("not installed: ")
    assert line.endswith('(pip install "softcarry[torch]")')
    assert len(err.splitlines()) < 12


@pytest.mark.usefixtures("quick")
def test_a_library_that_is_broken_is_said_and_left_out(capsys, monkeypatch):
    def broken(name):
        msg = "libtorch_cpu.so: cannot open shared object file"
        if "torch" in name:
            raise OSError(msg)
        return import_module(name)

    monkeypatch.setattr(subjects_module, "import_module", broken)
    status, out, err = run(capsys, "audit", "--json", "--same-process")
    assert status == 0
    names = [r["subject"]["name"] for r in json.loads(out)["reports"]]
    assert "torch-sdpa-flash" not in names
    assert "softcarry-attention" in names
    assert "subject 'torch-sdpa-flash' does not load: OSError: libtorch_cpu.so: cannot open" in err
    status, out, err = run(capsys, "audit", "torch-sdpa-flash", "--same-process")
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1


@pytest.mark.usefixtures("own_folder")
def test_a_kernel_that_crashes_is_a_finding(capsys):
    status, out, _ = run(capsys, "audit", "my_kernels:dies", "my_kernels:sound", "--only", "LSE", "--json")
    assert status == 1
    first, second = json.loads(out)["reports"]
    assert [f["message"] for f in first["findings"]] == [
        "the process dies, killed by SIGKILL, in the first plain call"
    ]
    assert second["ok"]


@pytest.mark.usefixtures("own_folder")
def test_limits_are_kept(capsys):
    status, out, _ = run(
        capsys, "audit", "my_kernels:sleeps", "--only", "LSE", "--json", "--time-limit", "20"
    )
    assert status == 1
    assert "no answer within 20 s" in json.loads(out)["reports"][0]["findings"][0]["message"]


@pytest.mark.usefixtures("own_folder")
def test_files_are_written_in_the_format_of_their_name(capsys, own_folder):
    names = ("r.html", "r.json", "r.md", "r.xml", "r.sarif", "r.txt")
    files = [token for name in names for token in ("--output", name)]
    status, out, err = run(capsys, "audit", "my_kernels:lse_zero", "--only", "LSE", *files)
    assert status == 1
    assert all(f"wrote {name}" in err for name in names)
    assert sorted(path.name for path in own_folder.iterdir() if path.name.startswith("r.")) == sorted(names)
    (report,) = Report.all_from_json((own_folder / "r.json").read_text())
    assert not report.ok
    assert (own_folder / "r.html").read_text().startswith("<!doctype html>")
    assert (own_folder / "r.md").read_text().startswith("| check | my")
    assert (own_folder / "r.xml").read_text().startswith("<?xml")
    assert json.loads((own_folder / "r.sarif").read_text())["version"] == "2.1.0"
    assert (own_folder / "r.txt").read_text().strip() == out.strip()


@pytest.mark.usefixtures("own_folder")
@pytest.mark.parametrize("kind", ["text", "json", "html", "markdown", "junit", "sarif"])
@pytest.mark.parametrize(("kernel", "status"), [("sound", 0), ("lse_zero", 1)])
def test_the_exit_status_is_the_same_in_every_format(capsys, kernel, status, kind):
    asked = ("audit", f"my_kernels:{kernel}", "--only", "LSE", "--format", kind, "--same-process")
    assert run(capsys, *asked)[0] == status


@pytest.mark.usefixtures("own_folder")
def test_promises_come_from_a_file(capsys, own_folder):
    (own_folder / "promises.toml").write_text('lse_empty = "0"\noptions = ["softcap"]\n')
    status, out, _ = run(
        capsys, "audit", "my_kernels:lse_zero", "--only", "EMPTY", "--contract", "promises.toml", "--json"
    )
    assert status == 1
    assert [f["message"] for f in json.loads(out)["reports"][0]["findings"]] == [
        "the contract promises softcap, and the kernel has no such option"
    ]


@pytest.mark.usefixtures("own_folder")
def test_what_has_changed_since_a_baseline_is_a_warning(capsys):
    asked = ("audit", "--only", "EMPTY,FPRINT", "--same-process")
    assert run(capsys, *asked, "my_kernels:sound", "--output", "old.json")[0] == 0
    status, out, _ = run(capsys, *asked, "my_kernels:sound", "--baseline", "old.json", "--json")
    assert status == 0
    assert json.loads(out)["reports"][0]["findings"] == []
    status, out, _ = run(
        capsys, *asked, "my_kernels:online", "--baseline", "old.json", "--json", "--fail-on", "warning"
    )
    assert status == 1
    findings = json.loads(out)["reports"][0]["findings"]
    assert {f["severity"] for f in findings} == {"warning"}
    assert "FPRINT" in {f["check"] for f in findings}


BAD = {
    "raises": (["my_kernels:raises"], ["RuntimeError: out of luck", "expected kernel(q, k, v)"]),
    "wrong shape": (["my_kernels:wrong_shape"], ["shape (3,)", "(1, 2, 64, 32)"]),
    "no function": (["my_kernels:nothing"], ["has no 'nothing'"]),
    "no kernel": (["my_kernels:number"], ["of type int"]),
    "broken module": (["my_broken:kernel"], ["raised ZeroDivisionError"]),
    "no module": (["my_absent:kernel"], ["no module 'my_absent'"]),
    "unknown name": (["torch-sdpa-flsh"], ["did you mean 'torch-sdpa-flash'"]),
    "unknown check": (["my_kernels:sound", "--only", "EMTPY"], ["did you mean 'EMPTY'"]),
    "unknown dtype": (["my_kernels:sound", "--dtype", "float8"], ["bfloat16", "'float8'"]),
    "negative seed": (["my_kernels:sound", "--seed", "-1"], ["seed", "-1"]),
    "unknown severity": (["my_kernels:sound", "--fail-on", "hint"], ["hint"]),
    "no such contract": (["my_kernels:sound", "--contract", "none.toml"], ["none.toml", "No such file"]),
    "no such baseline": (["my_kernels:sound", "--baseline", "none.json"], ["none.json", "No such file"]),
    "no report": (["my_kernels:sound", "--baseline", "my_kernels.py"], ["does not parse"]),
    "unknown ending": (["my_kernels:sound", "--output", "r.pdf"], [".html (html)", "'r.pdf'"]),
    "no folder": (["my_kernels:sound", "--output", "none/r.html"], ["none", "no such folder"]),
    "no time": (["my_kernels:sound", "--time-limit", "0"], ["time_limit", "above 0"]),
    "no device": (["my_kernels:sound", "--device", "cuda"], ["torch arrays", "CUDA"]),
    "no subject of a dtype": (["--dtype", "float64", "--only", "LSE", "--skip", "LSE"], ["no check is left"]),
}


@pytest.mark.usefixtures("own_folder")
@pytest.mark.parametrize(("tokens", "words"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line_and_status_2(capsys, tokens, words):
    status, out, err = run(capsys, "audit", *tokens)
    assert status == 2
    assert out == ""
    assert len(err.splitlines()) == 1, err
    assert all(word in err for word in words), err
    assert "Traceback" not in err


@pytest.mark.usefixtures("own_folder")
def test_debug_shows_the_traceback(capsys):
    status, _, err = run(capsys, "audit", "my_kernels:raises", "--debug", "--same-process")
    assert status == 2
    assert "Traceback" in err
    assert "out of luck" in err


@pytest.mark.usefixtures("own_folder")
def test_one_subject_that_can_not_run_does_not_hide_the_others(capsys):
    status, out, err = run(capsys, "audit", "my_kernels:raises", "my_kernels:sound", "--only", "LSE")
    assert status == 2
    assert "my_kernels:sound: nothing found" in out
    assert "out of luck" in err


def test_the_current_folder_is_importable_from_the_command(own_folder):
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "NO_COLOR": "1",
        "COLUMNS": "80",
    }
    command = [
        str(Path(sys.executable).with_name("softcarry")),
        "audit",
        "my_kernels:lse_zero",
        "--only",
        "LSE",
    ]
    done = subprocess.run(
        command, cwd=own_folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "FAIL LSE  float32" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_subjects_lists_what_there_is(capsys, monkeypatch):
    status, out, _ = run(capsys, "subjects")
    assert status == 0
    assert all(name in out for name in KNOWN)
    assert "CONTROL" in out
    monkeypatch.setattr(_table, "find_spec", lambda name: None)
    _, out, _ = run(capsys, "subjects")
    assert 'pip install "softcarry[torch]"' in " ".join(out.split())


def test_subjects_as_json(capsys):
    content = json.loads(run(capsys, "subjects", "--json")[1])
    assert content["schema"] == "softcarry.subjects/1"
    assert [entry["name"] for entry in content["subjects"]] == list(KNOWN)
    available = {entry["name"] for entry in content["subjects"] if entry["available"]}
    assert {"softcarry-attention", "torch-sdpa-flash", "jax-dot-product"} <= available
    controls = {entry["name"] for entry in content["subjects"] if entry["control"]}
    assert controls == {name for name in KNOWN if name.startswith("control-")}
