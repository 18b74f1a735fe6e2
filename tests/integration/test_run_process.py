"""What a program under `kinetoscope run` finds in its process, and that it is run whatever becomes of us."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from broad import broad
from kinetoscope.sources.run import load
from programs import OPTIMIZERS, ROOT, TRAIN, Programs, Run

# What `docs/evidence/recording.md` lists under "What is changed in the process" is left out, and no more.
SEES = """
import gc, json, os, resource, signal, sys, threading, warnings
def sees():
    files = {}
    for fd in sorted(map(int, os.listdir("/proc/self/fd"))):
        if os.path.exists(f"/proc/self/fd/{fd}"):
            files[fd] = os.get_inheritable(fd)
    umask = os.umask(0)
    os.umask(umask)
    return {
        "signals": {int(s): str(signal.getsignal(s)).split(" at ")[0]
                    for s in signal.valid_signals() if s != signal.SIGTERM},
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "files": files,
        "limits": [resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT")],
        "process": [umask, os.nice(0), os.getcwd(), os.getpgrp() == os.getpid(), os.getsid(0)],
        "environment": sorted(os.environ.items()),
        "sys": [str(sys.flags), sys.path, sys.argv, sys.warnoptions, sys._xoptions,
                len(sys.path_hooks), sys.getrecursionlimit(), sys.getswitchinterval(), sys.orig_argv[1:]],
        "hooks": [hook.__name__ for hook in (sys.excepthook, sys.unraisablehook, sys.displayhook)],
        "traced": [str(sys.gettrace()), str(sys.getprofile())],
        "finders": [getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path],
        "gc": [gc.isenabled(), gc.get_threshold(), len(gc.callbacks)],
        "warnings": str(warnings.filters),
        "threads": [thread.name for thread in threading.enumerate()],
        "streams": [[s.isatty(), s.encoding, s.errors, s.line_buffering, s.write_through]
                    for s in (sys.stdin, sys.stdout, sys.stderr)],
        "os": [getattr(os, n).__name__ for n in ("_exit", "abort", "execv", "execve", "fork")],
        "modules": sorted({name.partition(".")[0] for name in sys.modules}),
        "main": sorted(vars(sys.modules["__main__"])),
    }
"""


def both(programs: Programs, *words: str, **variables: str) -> tuple[Run, Run]:
    return programs.plain(*words, **variables), programs.record(*words, **variables)


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are listed in /proc")
@pytest.mark.usefixtures("whole")
def test_a_program_finds_the_process_that_it_would_find_without_us(programs: Programs):
    script = programs.write(SEES + "print(json.dumps(sees()))")
    plain, run = both(programs, str(script))
    seen, expected = json.loads(run.out), json.loads(plain.out)
    assert seen.pop("finders") == ["ImportWatch", *expected.pop("finders")]  # until torch is imported
    assert seen == expected


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are listed in /proc")
@pytest.mark.usefixtures("whole")
def test_once_all_is_recorded_the_process_is_as_without_us(programs: Programs):
    script = programs.write(SEES + TRAIN + "train(300, 0.001)\nprint(json.dumps(sees()))")
    plain = programs.plain(str(script), "x")
    run = programs.record("--warmup", "2", "--steps", "2", str(script), "x")
    assert run.steps["after"]
    seen, expected = json.loads(run.out), json.loads(plain.out)
    assert set(seen.pop("finders")) - set(expected.pop("finders")) == {"ImportWatch"}
    more = {*seen.pop("modules")} - {*expected.pop("modules")} - sys.stdlib_module_names
    # Python's own data on how it was built is named after the machine.
    assert {name for name in more if "sysconfigdata" not in name} == {"kinetoscope", "msgspec"}
    log = {fd: seen["files"].pop(fd) for fd in list(seen["files"]) if fd not in expected["files"]}
    assert not any(log.values())  # no child of the program's inherits what we have open
    assert seen == expected


@pytest.mark.usefixtures("whole")
def test_functions_at_exit_run_in_their_order(programs: Programs):
    """Ours lies between them; each finds what it would find without us."""
    script = programs.write(
        "import atexit, signal, sys\n"
        "early = lambda: print('early', signal.getsignal(signal.SIGTERM), sys.stdout.closed, flush=True)\n"
        "atexit.register(early)\n" + TRAIN + "train(3)\natexit.register(lambda: print('late', len(sys.argv)))"
    )
    assert programs.record(str(script)).out == f"late 1\nearly {signal.SIG_DFL} False\n"


def test_inherited_descriptors_stay_open(programs: Programs):
    script = programs.write("import os, sys\nprint(os.read(3, 5), open(sys.argv[1]).read())")
    (programs.home / "three").write_text("three")
    for words in (sys.executable, f"{sys.executable} -m kinetoscope run --no-report"):
        command = f"{words} {script} <(echo substituted) 3< three"
        assert programs.execute(["bash", "-c", command]).out == "b'three' substituted\n\n"


@pytest.mark.parametrize(
    "variables", [{}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}], ids=["utf-8", "C"]
)
def test_words_and_folders_that_are_no_text(programs: Programs, variables: dict[str, str]):
    odd = os.fsdecode(b"f\xff\xc3\xa9")
    script = programs.write("import os, sys\nprint(*map(os.fsencode, sys.argv))", f"{odd}/prog.py")
    words = (str(script), odd, "é")
    plain = programs.plain(*words, **variables)
    run = programs.record("--out", odd + "/out", *words, **variables)
    assert (run.status, run.out) == (0, plain.out)
    manifest = json.loads((script.parent / "out" / "manifest.json").read_text("utf-8"))
    assert manifest["command"][-2:] == ["f\\xffé", "é"]
    assert "Traceback" not in run.err


def test_a_program_runs_in_a_folder_that_is_no_text(programs: Programs):
    """Kineto writes no trace there."""
    odd = os.fsdecode(b"f\xff")
    script = programs.write(TRAIN + "train(3)", f"{odd}/prog.py")
    run = programs.record("--out", f"{odd}/out", str(script))
    manifest = json.loads((script.parent / "out" / "manifest.json").read_text("utf-8"))
    assert (run.status, manifest["exit"]) == (0, "ok")
    assert manifest["ranks"][0]["program"]


def test_without_a_working_directory_the_recording_is_a_temporary_folder(programs: Programs):
    script = programs.write("print('ran')")
    (programs.home / "temporary").mkdir()
    command = f"mkdir gone && cd gone && rmdir ../gone && exec {sys.executable} -m kinetoscope run {script}"
    run = programs.execute(["sh", "-c", command], TMPDIR=str(programs.home / "temporary"))
    assert (run.status, run.out) == (0, "ran\n")
    made = next((programs.home / "temporary").iterdir())
    assert (made / "manifest.json").is_file()
    assert run.err.count(str(made)) >= 1


@pytest.mark.parametrize("options", ["", "--out given"])
def test_a_program_runs_though_nothing_can_be_recorded(programs: Programs, options: str):
    script = programs.write("print('ran')\nraise SystemExit(7)")
    command = f"ulimit -f 0; exec {sys.executable} -B -m kinetoscope run {options} {script}"
    run = programs.execute(["sh", "-c", command])
    assert (run.status, run.out) == (7, "ran\n")
    assert run.err.count("kinetoscope:") == 1
    assert "runs without being recorded" in run.err


def test_another_python_that_cannot_load_us_is_told_what_fixes_it(programs: Programs):
    """What the environment of another Python lacks is what is compiled: msgspec."""
    script = programs.write("import torch\nprint('ran')")
    programs.write("", "torch.py")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", programs.home / "bare"], check=True)
    bare = str(programs.home / "bare" / "bin" / "python")
    run = programs.record("--", "env", "KINETOSCOPE_LAUNCHER=3.1", bare, str(script))
    assert (run.status, run.out) == (0, "ran\n")
    own = ".".join(map(str, sys.version_info[:2]))
    assert f"the program's Python is {own}, the one that kinetoscope is installed for is 3.1 " in run.err
    assert f"`{bare} -m pip install msgspec` fixes it" in run.err


def test_another_python_that_has_what_we_need_is_recorded(programs: Programs):
    script = programs.write(TRAIN + "train(3)")
    run = programs.record("--", "env", "KINETOSCOPE_LAUNCHER=3.1", sys.executable, str(script))
    assert run.rank["trace"], run.err


@pytest.mark.parametrize("ending", ["sys.exit(3)", "os.kill(os.getpid(), 15)", "raise KeyboardInterrupt"])
def test_the_status_is_the_program_s_own(programs: Programs, ending: str):
    plain, run = both(programs, str(programs.write(f"import os, sys\n{ending}")))
    assert run.status == plain.status != 0
    assert plain.err in run.err
    said = "was ended by SIGTERM" if "kill" in ending else "the program failed"
    assert (said in run.err) == ("Keyboard" not in ending)


def test_a_shell_s_script_ends_when_its_command_is_interrupted(programs: Programs):
    """It does so where the command dies of SIGINT, and not where the command's status is 130."""
    script = programs.write("import os, time\nos.kill(0, 2)\ntime.sleep(9)")
    for words in (sys.executable, f"{sys.executable} -m kinetoscope run"):
        done = subprocess.run(
            ["bash", "-c", f"{words} {script}; echo went on"],
            cwd=programs.home,
            env=programs.environment(),
            capture_output=True,
            text=True,
            timeout=30,
            process_group=0,
        )
        assert "went on" not in done.stdout
        assert done.returncode == -2


WORDS = [
    "--b",
    "1",
    "--steps=3",
    "--steps",
    "-5",
    "--",
    "-m",
    "--out",
    "@file",
    "",
    "-",
    "--no-report",
    "é\n",
]


@pytest.mark.parametrize("given", [["-u", "PYTHONPATH"], ["PYTHONPATH="], ["PYTHONPATH=/nowhere:"]])
@pytest.mark.usefixtures("whole")
def test_a_shell_s_script_may_add_to_where_python_looks(programs: Programs, given: list[str]):
    """Children of the program look there, too."""
    programs.write("", "src/own.py")
    programs.write("", "here.py")
    shows = "import os, own, here, sys; print(os.environ['PYTHONPATH'], sys.path[1:])"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {shows!r}])"
    programs.write(f"import torch\n{shows}\n{child}", "scripts/prog.py")
    programs.write("", "src/torch.py")
    script = f"export PYTHONPATH=$PWD/src:$PYTHONPATH\n{sys.executable} scripts/prog.py\n"
    programs.write(script, "train.sh")
    ours = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); from kinetoscope.cli import run; run()"
    plain = programs.execute(["env", *given, "sh", "train.sh"])
    run = programs.execute(
        ["env", *given, sys.executable, "-c", ours, "run", "--no-report", "--", "sh", "train.sh"]
    )
    assert len(plain.out.splitlines()) == 2, plain.err
    assert (run.status, run.out) == (0, plain.out), run.err


@pytest.mark.parametrize("words", ["- x < prog.py", "<(cat prog.py) x", "/dev/stdin x < <(cat prog.py)"])
def test_a_script_may_come_through_a_pipe(programs: Programs, words: str):
    programs.write("import sys\nprint(__name__, sys.argv[1:], sys.stdin.read())\nraise SystemExit(3)")
    plain, run = (
        programs.execute(["bash", "-c", f"exec {sys.executable} {ours} {words}"])
        for ours in ("", "-m kinetoscope run --no-report")
    )
    assert (run.status, run.out) == (plain.status, plain.out) == (3, "__main__ ['x'] \n")


def test_a_script_that_names_no_interpreter_is_the_shell_s(programs: Programs):
    script = programs.write("echo $0 $1\nexit 7", "train")
    script.chmod(0o755)
    plain, run = programs.execute(["env", "./train", "x"]), programs.record("--", "./train", "x")
    assert (run.status, run.out) == (plain.status, plain.out) == (7, "./train x\n")


@pytest.mark.parametrize("closed", [False, True])
def test_what_is_said_goes_to_the_standard_error_that_the_program_was_started_with(
    programs: Programs, closed: bool
):
    """Not to what the program has put in its place, nor, where it is closed, to standard output."""
    script = programs.write(
        TRAIN
        + "import builtins, io\nshow = print\nbuiltins.print = lambda *words: show('program:', *words)\n"
        "sys.stderr = io.StringIO()\ntrain(100)\nprint(repr(sys.stderr.getvalue()))"
    )
    command = f"exec {sys.executable} -m kinetoscope run --no-report {script} {'2>&-' if closed else ''}"
    run = programs.execute(["sh", "-c", command])
    assert (run.status, run.out) == (0, "program: ''\n")
    assert ("a step is one Descent.step()" in run.err) != closed
    assert run.steps["profiled_s"]


@pytest.mark.parametrize(
    "options", [["-Om"], ["-X", "dev", "-Bsm"], ["--check-hash-based-pycs", "always", "-m"]]
)
def test_options_of_python_are_the_program_s_however_they_are_written(programs: Programs, options: list[str]):
    script = programs.write("import sys\nprint(sys.flags, sys._xoptions, sys.argv)")
    *before, last = options
    own = [*before, *([] if last == "-m" else [last.removesuffix("m")])]
    plain = programs.plain(*own, str(script))
    run = programs.execute([sys.executable, *options, "kinetoscope", "run", "--no-report", str(script)])
    assert (run.status, run.out) == (0, plain.out), run.err


def test_words_after_the_script_are_the_program_s(programs: Programs):
    script = programs.write("import sys\nprint(sys.argv[1:])", "shows.py")
    plain = programs.plain(str(script), *WORDS)
    for ours in ([], ["--"], ["--steps=3", "--out", "a", "--warmup", "0"], ["-o", "b", "--"]):
        assert programs.record(*ours, str(script), *WORDS).out == plain.out
    assert programs.record("--out", "c", "-m", "shows", *WORDS).out == plain.out


def test_a_program_that_is_recorded_is_ended_on_request(programs: Programs):
    script = programs.write(TRAIN + "train(10 ** 9)")
    run = programs.record("--stop", "--steps", "2", "--warmup", "2", str(script))
    assert run.status == 0
    assert run.manifest["status"] == -2
    assert run.rank["recording_ended"]
    assert len(run.steps["profiled_s"]) == 2
    assert "as --stop asks" in run.err
    assert "failed" not in run.err


def test_a_program_that_fails_before_all_is_recorded_fails_with_its_status(programs: Programs):
    run = programs.record("--stop", str(programs.write("raise SystemExit(7)")))
    assert (run.status, "--stop" in run.err) == (7, False)


SPAWNING = (
    OPTIMIZERS
    + """
import kinetoscope, torch, torch.distributed as dist, torch.multiprocessing as mp

def work(rank, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with kinetoscope.profile(out="ranks", steps=2, warmup=1) as p:
        while not p.done:
            net(torch.ones(1, 8)).sum().backward()
            optimizer.step()

if __name__ == "__main__":
    mp.spawn(work, args=("SHARED",), nprocs=2)
"""
)


def test_processes_that_a_program_starts_itself_record_as_ranks_of_one_recording(programs: Programs):
    run = programs.record(str(programs.write(SPAWNING.replace("SHARED", str(programs.home / "shared")))))
    assert run.status == 0, run.err
    assert "start them with torchrun" in run.err
    manifest = json.loads((programs.home / "ranks" / "manifest.json").read_text())
    assert [rank["rank"] for rank in manifest["ranks"]] == [0, 1]
    assert {trace.rank for trace in load(programs.home / "ranks").traces} == {0, 1}


@pytest.mark.parametrize("ending", broad(["sys.exit(2)", "sys.exit(0)"], ["sys.exit(2)"]))
def test_a_program_that_ends_before_any_op_is_one_line_and_no_report(programs: Programs, ending: str):
    script = programs.write(f"import sys, torch\n{ending}\n")
    run = programs.record(str(script))
    assert "before it called an op of torch: there is nothing to report" in run.err
    assert "multiprocessing" not in run.err
    assert "The recording" not in run.err
    assert "no steps were found" not in run.err
