"""Found by the interpreter of a program that `kinetoscope run` started, before the program's first line.

Hides every trace of itself, runs the `sitecustomize` it stood in front of, and waits for the program to
import torch. Until then nothing is imported that is not in every interpreter: the program's own folder is not
on the path yet, and a `datetime.py` of its own that lies there is the one that it is to find.
"""

import _frozen_importlib as importing
import _frozen_importlib_external as files
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
CAPTURE = os.path.dirname(os.path.dirname(HERE))
# What `process/launch.py` sets.
INSTRUCTIONS = "KINETOSCOPE_CAPTURE"
HOME = "KINETOSCOPE_HOME"
LAUNCHER = "KINETOSCOPE_LAUNCHER"
PYTHONPATH = "KINETOSCOPE_PYTHONPATH"
# Set where the program's own children may be the ones to record: a server's workers.
ON_REQUEST = "KINETOSCOPE_ON_REQUEST"
# Programs whose Python processes only start others: the ranks are theirs to start and ours to record.
LAUNCHERS = {
    "torchrun",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate",
    "deepspeed",
    "mpirun",
}


def _names_of(*words: str) -> "dict[str, Any]":
    """The names in a module of ours that imports nothing, read without the packages around it, which do."""
    path = os.path.join(CAPTURE, *words)
    names: dict[str, Any] = {"__name__": "kinetoscope"}
    code = files.SourceFileLoader("kinetoscope", path).get_code("kinetoscope")
    assert code is not None
    exec(code, names)
    return names


def _stand_back() -> None:
    """Run the environment's own `sitecustomize`, as if this one had not been there. Raises ImportError where
    there is none, which is what `site` expects to hear."""
    entries = ([entry] if os.path.abspath(entry or ".") != HERE else STANDS_FOR for entry in sys.path)
    sys.path[:] = dict.fromkeys(entry for some in entries for entry in some)
    spec = files.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        raise ImportError("there is no sitecustomize", name="sitecustomize")
    module = importing.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _python_path() -> "tuple[str | None, list[str]]":
    """PYTHONPATH without us, as it was given and with what a shell's script has put around that since; and
    what our own folder stands for in ``sys.path``: the working directory, which an empty entry means, where
    a script added to nothing, as ``src:$PYTHONPATH`` does."""
    path, given = os.environ.get("PYTHONPATH", HERE), os.environ.get(PYTHONPATH)
    if path == HERE:
        return given, []
    if given:
        return path.replace(HERE + os.pathsep, ""), []
    try:
        return path.replace(HERE, ""), [os.getcwd()]
    except OSError:  # it is gone
        return path.replace(HERE, ""), []


def _hide() -> None:
    """Leave the environment as the user's shell had it: the program's own children are none of ours."""
    for name in (INSTRUCTIONS, HOME, LAUNCHER, PYTHONPATH, "PYTHONPATH"):
        os.environ.pop(name, None)
    if GIVEN is not None:
        os.environ["PYTHONPATH"] = GIVEN


def _hide_from_program() -> None:
    """Leave ``os.environ`` as the user's shell had it, and the process's own environment as it is: children
    that are started without one of their own inherit it, and may be the ones to record."""
    seen = os.environ._data  # pyright: ignore
    for name in (INSTRUCTIONS, HOME, LAUNCHER, ON_REQUEST, PYTHONPATH, "PYTHONPATH"):
        seen.pop(os.fsencode(name), None)
    if GIVEN is not None:
        seen[b"PYTHONPATH"] = os.fsencode(GIVEN)


def _begin() -> None:
    """Arrange for this process to be recorded once it imports torch, if it is one to record."""
    instructions, home = os.environ.get(INSTRUCTIONS), os.environ.get(HOME)
    if instructions is None or home is None:
        return
    own, launcher = ".".join(map(str, sys.version_info[:2])), os.environ.get(LAUNCHER)
    if sys.version_info < (3, 10):  # noqa: UP036 (the program's Python, which need not be ours)
        _hide()
        _say(f"Python {own} of {sys.executable} is not recorded: 3.10 is the oldest that is")
        return
    place = _names_of("process", "ranks.py")["rank_and_world"](os.environ)
    words = {os.path.basename(word).removesuffix(".py") for word in sys.orig_argv[:4]}
    if launcher and place is None and words & LAUNCHERS:
        return  # its children inherit the instructions
    given = (GIVEN or "").split(os.pathsep)
    installed = [entry for entry in sys.path if entry not in (HERE, *given)]
    ours = [] if home in installed else [home]
    # Of what is installed next to us, another Python can load our own code alone, which needs no compiler.
    is_ours = launcher in (None, own)
    path = [*(ours + installed if is_ours else installed + ours), *filter(None, given)]
    hide = _hide_from_program if ON_REQUEST in os.environ else _hide
    if hide is _hide_from_program or not launcher or place is not None:
        hide()

    def torch_imported() -> None:
        if hide is _hide and launcher and place is None:
            hide()
        try:
            begin = _borrowed(path)
        except ImportError as error:
            if is_ours:
                raise
            _say(
                f"not recorded: the program's Python is {own}, the one that kinetoscope is installed for is "
                f"{launcher} ({error}): `{sys.executable} -m pip install msgspec` fixes it"
            )
            return
        begin(instructions, *(place or (0, 1)))

    watch = _names_of("hooks", "imports.py")["ImportWatch"]()
    watch.when_imported("torch", torch_imported)


def _borrowed(path: "Sequence[str]") -> "Callable[[str, int, int], None]":
    """Import the code that records this process as if the program had no modules of its own.

    A module of the program's that has a name out of the standard library is set aside meanwhile; one of ours
    in whose place the program would find another is not left for it to find.
    """
    program_path, before = sys.path[:], set(sys.modules)
    others = (*sys.stdlib_module_names, "msgspec")
    aside = {name.partition(".")[0] for name in before} & {*others}
    aside = {name for name in aside if _is_from_elsewhere(sys.modules.get(name), path)}
    kept = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in aside}
    for name in kept:
        del sys.modules[name]
    sys.path[:] = path
    try:
        from kinetoscope.capture.process.child import begin
    finally:
        sys.path[:] = program_path
        for name in set(sys.modules) - (before - set(kept)):
            top = name.partition(".")[0]
            if top in aside or (top in others and _is_found_elsewhere(top)):
                del sys.modules[name]
        sys.modules.update(kept)
    return begin


def _is_from_elsewhere(module: "ModuleType | None", path: "Sequence[str]") -> bool:
    origin = getattr(getattr(module, "__spec__", None), "origin", None) or ""
    return os.path.isabs(origin) and not any(origin.startswith(entry + os.sep) for entry in path if entry)


def _is_found_elsewhere(name: str) -> bool:
    """Whether the program would import another module of that name than the one that is loaded."""
    spec, own = files.PathFinder.find_spec(name, sys.path), sys.modules.get(name)
    return spec is not None and own is not None and spec.origin != getattr(own.__spec__, "origin", None)


def _say(what: str) -> None:
    if sys.stderr is not None:  # closed: print would take standard output for it
        print(f"kinetoscope: {what}", file=sys.stderr)


GIVEN, STANDS_FOR = _python_path()
try:
    _begin()
except Exception as error:
    _say(f"not recording this process: {type(error).__name__}: {error}")
finally:
    _stand_back()
