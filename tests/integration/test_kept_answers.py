"""What a command answers the second time: the same bytes, without reading, until anything changes."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import traces
from broad import broad
from command import ENVIRONMENT, kinetoscope
from kinetoscope import document
from kinetoscope.analysis.idle import gaps
from kinetoscope.cli import main
from kinetoscope.document import KernelListing, ListingRow
from kinetoscope.document.collect import kernels as collect
from kinetoscope.document.collect.report import build
from kinetoscope.recording import manifest
from kinetoscope.sources import kept
from kinetoscope.sources import run as runs
from kinetoscope.sources.run import LoadedRun, load
from kinetoscope.trace import cache

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
COLLECTING, MODES = "h200_rare_steps/collecting", "h200_modes"
LOG, TRACE = "h200_breaks/breaks.log.gz", "h200/llama_train_compile.json.gz"
PICKLE = "h200_memory/leak.pickle.gz"


class ReadError(Exception):
    """A command has read what it was to know."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KINETOSCOPE_CACHE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kinetoscope" / "traces"


@pytest.fixture
def given(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a fixture: what is kept of it lies with it."""

    def copy(name: str) -> Path:
        source, target = FIXTURES / name, tmp_path / Path(name).name
        if not target.exists():
            (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
        return target

    return copy


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs a command that may read nothing."""

    def run(*words: object, **options: Any) -> Any:
        def refuse(*inputs: object, **_: object) -> None:
            raise ReadError(inputs)

        with monkeypatch.context() as patched:
            patched.setattr(runs, "load", refuse)
            return kinetoscope(*words, **options)

    return run


def answers(home: Path) -> list[Path]:
    return sorted(home.glob(f"*{cache.ANSWER}"))


def said(done: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    return done.returncode, done.stdout, done.stderr


COMMANDS = [
    (COLLECTING, ["report"]),
    (COLLECTING, ["report", "--verbose"]),
    (COLLECTING, ["report", "--json"]),
    (COLLECTING, ["kernels"]),
    (COLLECTING, ["kernels", "--by", "op", "--json"]),
    (COLLECTING, ["kernels", "--chain", "*", "--json"]),
    (COLLECTING, ["kernels", "--chain", "*", "--limit", "1"]),
    (COLLECTING, ["findings"]),
    (COLLECTING, ["findings", "--json"]),
    (COLLECTING, ["steps"]),
    (COLLECTING, ["steps", "--json"]),
    (COLLECTING, ["whatif", "--host", "0.5"]),
    (COLLECTING, ["whatif", "--json"]),
    (COLLECTING, ["memory", "--json"]),
    (MODES, ["report", "--json"]),
    (MODES, ["graphs"]),
    (TRACE, ["report", "--json"]),
    (TRACE, ["kernels", "--by", "graph"]),
    (TRACE, ["steps"]),
    (LOG, ["graphs", "--json", "--texts"]),
    (PICKLE, ["memory", "--json"]),
    (PICKLE, ["memory", "--stacks"]),
]


def test_a_number_is_of_its_field_s_type_even_where_nothing_was_found() -> None:
    """1 for 1.0 would be printed as another number once it is read again, and the answer is not kept."""
    assert type(manifest.StepLevel(kind="module", name="net").calls) is float
    structs = [
        one for module in (manifest, document) for one in vars(module).values() if isinstance(one, type)
    ]
    fields = [
        field for one in structs if issubclass(one, msgspec.Struct) for field in msgspec.structs.fields(one)
    ]
    assert len(fields) > 500
    assert not [field.name for field in fields if field.type is float and type(field.default) is int]
    busy = [
        event
        for number in range(3)
        for event in (
            traces.step(number, 1000 * number, 1000),
            traces.call("cudaLaunchKernel", 1000 * number + 1, 5, number + 1),
            traces.kernel("gemm", 1000 * number + 10, 1000, number + 1),
        )
    ]
    found = build(LoadedRun((traces.trace(*busy),)))
    assert found.replay is not None
    assert not found.findings
    encoded = msgspec.msgpack.encode(found)
    assert msgspec.msgpack.encode(msgspec.msgpack.decode(encoded, type=document.Report)) == encoded


ALWAYS = [
    (COLLECTING, ["report"]),
    (COLLECTING, ["kernels", "--by", "op", "--json"]),
    (COLLECTING, ["findings"]),
    (COLLECTING, ["steps", "--json"]),
    (COLLECTING, ["whatif", "--host", "0.5"]),
    (TRACE, ["report", "--json"]),
    (LOG, ["graphs", "--json", "--texts"]),
    (PICKLE, ["memory", "--stacks"]),
]


@pytest.mark.parametrize(
    ("name", "words"),
    broad(COMMANDS, ALWAYS),
    ids=lambda one: " ".join(one) if isinstance(one, list) else one,
)
def test_what_is_printed_is_the_same_without_reading(
    name: str, words: list[str], given: Callable[[str], Path], unread: Callable[..., Any]
) -> None:
    path = given(name)
    plain = kinetoscope(words[0], path, *words[1:], KINETOSCOPE_CACHE="0")
    first = kinetoscope(words[0], path, *words[1:])
    assert said(first) == said(plain)
    if plain.returncode == 0:
        assert said(unread(words[0], path, *words[1:])) == said(plain)


@pytest.mark.parametrize(
    ("name", "suffix"),
    broad(
        [
            (COLLECTING, "html"),
            (COLLECTING, "json"),
            (MODES, "html"),
            (TRACE, "md"),
            (TRACE, "txt"),
            (TRACE, "sarif"),
        ],
        [(COLLECTING, "html"), (TRACE, "sarif")],
    ),
)
def test_files_are_the_same_without_reading(
    name: str, suffix: str, given: Callable[[str], Path], unread: Callable[..., Any], tmp_path: Path
) -> None:
    path, file = given(name), tmp_path / f"report.{suffix}"
    written = []
    for run, settings in ((kinetoscope, {"KINETOSCOPE_CACHE": "0"}), (kinetoscope, {}), (unread, {})):
        assert run("report", path, "-o", file, **settings).returncode == 0
        written.append(file.read_bytes())
    assert written[0] == written[1] == written[2]


def test_two_recordings_compared_are_the_same_without_reading(
    given: Callable[[str], Path], unread: Callable[..., Any], home: Path
) -> None:
    words = given(COLLECTING), given("h200_rare_steps/not-collecting"), "--fail-on", "launches > 0"
    plain = kinetoscope("diff", *words, KINETOSCOPE_CACHE="0")
    assert said(kinetoscope("diff", *words)) == said(plain) == said(unread("diff", *words))
    assert len(answers(home)) == 1
    assert kinetoscope("diff", *words[:2], KINETOSCOPE_DEBUG="").returncode == 0


def test_a_findings_proof_is_part_of_the_question(
    given: Callable[[str], Path], unread: Callable[..., Any]
) -> None:
    before, after = given(COLLECTING), given("h200_rare_steps/not-collecting")
    proven = kinetoscope("findings", before, "--proof", after, "--json")
    alone = kinetoscope("findings", before, "--json")
    assert json.loads(proven.stdout)["after"] is not None
    assert json.loads(alone.stdout)["after"] is None
    assert said(unread("findings", before, "--proof", after, "--json")) == said(proven)


@pytest.mark.parametrize(("name", "output"), [(COLLECTING, []), (TRACE, ["-o", "page.html"])])
def test_a_report_knows_what_findings_are_asked_for(
    name: str, output: list[str], given: Callable[[str], Path], unread: Callable[..., Any], tmp_path: Path
) -> None:
    path = given(name)
    plain = kinetoscope("findings", path, "--json", KINETOSCOPE_CACHE="0")
    assert kinetoscope("report", path, *output, cwd=tmp_path).returncode == 0
    assert said(unread("findings", path, "--json")) == said(plain)


@pytest.mark.parametrize("name", [COLLECTING, TRACE])
def test_a_page_knows_the_report(
    name: str, given: Callable[[str], Path], unread: Callable[..., Any], tmp_path: Path
) -> None:
    path, file = given(name), tmp_path / "page.html"
    plain = kinetoscope("report", path, "--json", KINETOSCOPE_CACHE="0")
    assert kinetoscope("report", path, "-o", file).returncode == 0
    assert said(unread("report", path, "--json")) == said(plain)


@pytest.mark.parametrize("name", [COLLECTING, TRACE])
def test_a_page_is_the_report_that_is_known_and_more(
    name: str, given: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, file = given(name), tmp_path / "page.html"
    assert kinetoscope("report", path, "-o", file, KINETOSCOPE_CACHE="0").returncode == 0
    page = file.read_bytes()
    assert kinetoscope("report", path).returncode == 0
    monkeypatch.setattr("kinetoscope.document.collect.report.build", lambda _: pytest.fail("made anew"))
    assert main(["report", str(path), "-o", str(file)]) == 0
    assert file.read_bytes() == page


def test_what_was_left_out_is_said_each_time(
    given: Callable[[str], Path], unread: Callable[..., Any], tmp_path: Path
) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    shutil.copy(FIXTURES / TRACE, folder / "rank0.json.gz")
    (folder / "rank1.json").write_text('{"not": "a trace"}')
    first = kinetoscope("report", folder)
    assert "rank1.json was left out" in first.stderr
    assert said(unread("report", folder)) == said(first)


def test_a_recording_keeps_its_answers_itself(given: Callable[[str], Path], home: Path) -> None:
    path = given(COLLECTING)
    kinetoscope("findings", path)
    assert len(answers(path / "tables")) == 1
    assert answers(home) == []


def test_nothing_is_kept_where_that_is_turned_off(given: Callable[[str], Path], home: Path) -> None:
    path = given(TRACE)
    kinetoscope("report", path, KINETOSCOPE_CACHE="0")
    assert not home.exists()
    kinetoscope("report", path)
    assert answers(home)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_any_change_under_the_inputs_is_another_question(given: Callable[[str], Path]) -> None:
    """A byte of any file, its time, a file that comes or goes, a folder that comes."""
    path = given("h200_proved/narrow")

    def key() -> Path | None:
        return kept.entry([str(path)], "x")

    known = [key()]
    for file in _files(path):
        before = file.stat()
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        known.append(key())
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
        known.append(key())
    (path / "bench" / "tune-20261121-071215.json").write_text("{}")
    known.append(key())
    (path / "generated").mkdir()
    known.append(key())
    (path / "bench" / "tune-20261121-071215.json").unlink()
    known.append(key())
    (path / "tables").mkdir()
    assert key() == known[-1]
    assert None not in known
    assert len(set(known)) == len(known) == 2 * 3 + 4


def test_an_input_that_changed_is_read_again(given: Callable[[str], Path]) -> None:
    path = given(TRACE)
    first = json.loads(kinetoscope("kernels", path, "--json").stdout)
    content = json.loads(gzip.decompress(path.read_bytes()))
    kernels = [event for event in content["traceEvents"] if event.get("cat") == "kernel"]
    kernels[0]["dur"] += 1000
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    second = json.loads(kinetoscope("kernels", path, "--json").stdout)
    assert second["device_time_us"] == pytest.approx(first["device_time_us"] + 1000)


def test_options_settings_and_code_are_part_of_the_question(
    given: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = given(COLLECTING)
    known = {kept.entry([str(path)], "x"), kept.entry([str(path)], "y"), kept.entry([f"{path}/."], "x")}
    monkeypatch.setenv("KINETOSCOPE_RANKS", "1")
    known.add(kept.entry([str(path)], "x"))
    monkeypatch.setattr(cache, "code", lambda _: "other")
    known.add(kept.entry([str(path)], "x"))
    monkeypatch.setattr(sys, "version", "3.99")
    known.add(kept.entry([str(path)], "x"))
    assert None not in known
    assert len(known) == 6


def test_code_that_is_edited_is_other_code(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    module = tmp_path / "room" / "module.py"
    module.write_text("a = 1")
    marks = [cache.code(tmp_path)]
    for text in ("a = 2", "a = 22"):
        module.write_text(text)
        os.utime(module, ns=(len(text), len(text)))
        cache.code.cache_clear()
        marks.append(cache.code(tmp_path))
    assert len(set(marks)) == 3


def test_a_program_that_comes_or_goes_is_another_question(
    given: Callable[[str], Path], tmp_path: Path
) -> None:
    """Findings say whether the program that their command runs is here: it lies outside of the recording."""
    path, script = given(COLLECTING), tmp_path / "train.py"
    recorded = msgspec.structs.replace(manifest.read(path), command=("python", str(script)))
    manifest.write(path, recorded)
    without = kept.entry([str(path)], "x")
    script.write_text("")
    assert kept.entry([str(path)], "x") not in (without, None)


def test_what_is_read_next_to_a_log_is_part_of_the_question(
    given: Callable[[str], Path], tmp_path: Path
) -> None:
    path = given("h200_breaks/spills.log.gz")
    known = {kept.entry([str(path)], "x")}
    for name in ("scheduler.log", "counters.json", "bytecode.jsonl", "kernels.jsonl"):
        (tmp_path / f"spills.{name}").write_text("{}")
        known.add(kept.entry([str(path)], "x"))
    run = tmp_path / "debug" / "run_2026_11_23-pid_7"
    run.mkdir(parents=True)
    known.add(kept.entry([str(run)], "x"))
    (tmp_path / "debug" / "tlparse").mkdir()
    (tmp_path / "debug" / "tlparse" / "a.log").write_text("V1123 10:00:00.000000 7 torch/x.py:1] {}\n")
    known.add(kept.entry([str(run)], "x"))
    assert None not in known
    assert len(known) == 7


# Runs what it is asked to, and says which files of a folder were opened.
PROGRAM = """
import json, os, sys
seen = set()
def hook(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], (str, os.PathLike)):
        seen.add(os.path.abspath(arguments[0]))
sys.addaudithook(hook)
from kinetoscope.cli import main
sys.stdout = open(os.devnull, "w")
for line in sys.stdin:
    top, item, verbs = json.loads(line)
    seen.clear()
    for verb, *words in map(str.split, verbs):
        main([verb, item, *words])
    inside = [path for path in seen if path.startswith(top + os.sep)]
    print(json.dumps(inside), file=sys.__stdout__, flush=True)
"""


@pytest.fixture(scope="module")
def opened() -> Iterator[Callable[[Path, Path, list[str]], set[str]]]:
    """The files of a folder that verbs open of an item in it."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=ENVIRONMENT | {"KINETOSCOPE_CACHE": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def asked(top: Path, item: Path, verbs: list[str]) -> set[str]:
        print(json.dumps([str(top), str(item), verbs]), file=process.stdin, flush=True)
        return {path for path in json.loads(process.stdout.readline()) if os.path.exists(path)}

    yield asked
    process.stdin.close()
    process.wait()


@pytest.mark.parametrize(
    ("name", "verbs"),
    [
        (COLLECTING, ["report -o {}/x.html", "steps", "findings"]),
        ("h200_proved/narrow", ["report -o {}/x.html", "findings"]),
        ("h200_proved/columns", ["report -o {}/x.html"]),
        ("h100_everyday/host-bound", ["report -o {}/x.html"]),
        pytest.param(MODES, ["report", "graphs --json --texts"], marks=pytest.mark.slow),
        ("h200_breaks/spills.log.gz", ["graphs --json --texts"]),
        (PICKLE, ["memory"]),
    ],
)
def test_every_file_that_is_read_is_part_of_the_question(
    name: str, verbs: list[str], opened: Callable[[Path, Path, list[str]], set[str]], tmp_path: Path
) -> None:
    """Python tells of each file and folder that it opens."""
    top, out = tmp_path / "inputs", tmp_path / "out"
    shutil.copytree((FIXTURES / name).parent, top)
    out.mkdir()
    item = top / Path(name).name
    found = opened(top, item, [verb.format(out) for verb in verbs])
    assert found
    assert found <= {os.path.abspath(path) for path, _ in kept._facts(item)}


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "empty": lambda file: file.write_bytes(b""),
    "another byte": lambda file: file.write_bytes(file.read_bytes()[:-1] + b"\xc1"),
    "endless": lambda file: (file.unlink(), file.symlink_to("/dev/zero")),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
    "gone": lambda file: file.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_answer_is_removed_and_made_anew(
    damage: str, given: Callable[[str], Path], unread: Callable[..., Any], home: Path
) -> None:
    path = given(TRACE)
    first = kinetoscope("kernels", path)
    (entry,) = answers(home)
    DAMAGES[damage](entry / "answer")
    assert said(kinetoscope("kernels", path)) == said(first)
    assert answers(home) == [entry]
    assert said(unread("kernels", path)) == said(first)


EAGER = "h200/llama_train_eager.json.gz"


def tables(home: Path) -> list[Path]:
    """What is kept of analyses."""
    (folder,) = home.glob(f"*{cache.ANALYSES}")
    return sorted(folder.iterdir())


def test_another_question_computes_no_analysis_anew_that_is_kept(
    given: Callable[[str], Path], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = given(EAGER)
    truth = kinetoscope("report", path, "--json", KINETOSCOPE_CACHE="0")
    kinetoscope("findings", path)
    first = tables(home)
    assert any("idle.gaps" in one.name for one in first)

    def refuse(*_: object) -> None:
        raise AssertionError("idle time is known")

    monkeypatch.setattr(gaps, "_gaps", refuse)
    assert said(kinetoscope("report", path, "--json")) == said(truth)
    assert set(first) < set(tables(home))


@pytest.mark.parametrize("damage", DAMAGES)
def test_kept_tables_of_analyses_that_are_damaged_are_computed_anew(
    damage: str, given: Callable[[str], Path], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = given(EAGER)
    truth = kinetoscope("kernels", path, "--json", KINETOSCOPE_CACHE="0")
    kinetoscope("findings", path)
    before = {one: one.read_bytes() for one in tables(home)}
    for one in before:
        DAMAGES[damage](one)
    monkeypatch.setattr(kept, "MOST_FILES", kept.MOST_FILES)  # so that it is read anew
    assert said(kinetoscope("kernels", path, "--json")) == said(truth)
    categories = next(one for one in before if "_categories" in one.name)
    assert categories.read_bytes() == before[categories]


def test_what_another_user_kept_is_not_believed(
    given: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recording from a stranger, whose answers say what the stranger wants; and one answer for another."""
    path = given(COLLECTING)
    truth = kinetoscope("kernels", path, "--json").stdout
    (entry,) = answers(path / "tables")
    own = (entry / "answer").read_bytes()
    lie = KernelListing(by="kernel", category=None, device_time_us=0.0, rows=[], shares={})
    with monkeypatch.context() as patched:
        patched.setenv("XDG_CONFIG_HOME", str(tmp_path / "stranger"))
        shutil.rmtree(entry)
        kept.keep(entry, "kinetoscope.document:KernelListing", [], lie)
    assert (entry / "answer").read_bytes() not in (own, b"")
    assert kinetoscope("kernels", path, "--json").stdout == truth
    assert (entry / "answer").read_bytes() == own
    with monkeypatch.context() as patched:
        patched.setenv("XDG_CONFIG_HOME", str(tmp_path / "stranger"))
        assert kinetoscope("kernels", path, "--json").stdout == truth
        assert len(answers(path / "tables")) == 2
    other = entry.with_name(f"{'0' * 32}{entry.name[32:]}")
    entry.rename(other)
    assert kept.recall(other, "kinetoscope.document:KernelListing") is None
    assert not other.exists()


def test_an_answer_that_would_be_another_once_read_again_is_not_kept(tmp_path: Path) -> None:
    """Of a row that has more than its declared type, the rest would be lost; a number might be printed
    otherwise."""

    class MoreRow(ListingRow, frozen=True, kw_only=True):
        more: int = 1

    kind, entry = "kinetoscope.document:KernelListing", tmp_path / f"1{cache.ANSWER}"
    listing = collect.listing(load(FIXTURES / TRACE), "kernel", None)
    more = [MoreRow(**msgspec.structs.asdict(row)) for row in listing.rows]
    for changed in ({"rows": more}, {"device_time_us": 1}):
        kept.keep(entry, kind, [], msgspec.structs.replace(listing, **changed))
        assert not entry.exists()
    kept.keep(entry, kind, ["a remark"], listing)
    assert kept.recall(entry, kind) == (["a remark"], listing)


def test_what_is_too_large_is_not_kept(
    given: Callable[[str], Path], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "LARGEST", 10)
    kinetoscope("kernels", given(TRACE))
    assert answers(home) == []


def test_an_input_that_changes_while_it_is_read_leaves_no_answer(
    given: Callable[[str], Path], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, load = given(TRACE), runs.load

    def loading(*inputs: Any, **options: Any) -> Any:
        run = load(*inputs, **options)
        os.utime(path, ns=(1, 1))
        return run

    monkeypatch.setattr(runs, "load", loading)
    assert kinetoscope("kernels", path).returncode == 0
    assert answers(home) == []


def test_what_cannot_be_known_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "inputs"
    inside.mkdir()
    (inside / "a.json").write_text("{}")

    def is_known(*inputs: object) -> bool:
        return kept.entry([*map(str, inputs)], "x") is not None

    assert is_known(inside)
    monkeypatch.setattr(kept, "MOST_FILES", 1)
    assert not is_known(inside)
    monkeypatch.undo()
    monkeypatch.delenv("KINETOSCOPE_CACHE", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-").write_text("standard input is meant")
    assert not is_known("-")
    assert not is_known(inside, "s3://bucket/parts")
    (inside / "elsewhere").symlink_to(tmp_path)
    assert not is_known(inside)
    (inside / "elsewhere").unlink()
    if hasattr(os, "mkfifo"):
        os.mkfifo(inside / "pipe.json")
        assert not is_known(inside)
        assert not is_known(inside / "pipe.json")


def test_answers_of_a_recording_are_bounded_and_its_tables_are_not(
    given: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = given(COLLECTING)
    kinetoscope("kernels", path)
    (first,) = answers(path / "tables")
    tables = path / "tables" / "tables-of-a-trace"
    tables.mkdir()
    (tables / "facts.json").write_text("{}")
    os.utime(tables, (1, 1))
    os.utime(first, (2, 2))
    kinetoscope("findings", path)
    second = next(one for one in answers(path / "tables") if one != first)
    monkeypatch.setattr(cache, "_ANSWERS_SIZE", (second / "answer").stat().st_size)
    cache.forget_oldest(second)
    assert sorted((path / "tables").iterdir()) == sorted([tables, second])


@pytest.fixture(autouse=True)
def _no_code_is_remembered() -> Iterator[None]:
    yield
    cache.code.cache_clear()
