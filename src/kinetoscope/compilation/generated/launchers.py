"""Triton's launchers of each kernel, from a recording: registers, spills, shared memory, configurations."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kinetoscope.compilation.model import CompiledKernel, CompileRow


class LoadedConfiguration(CompileRow, frozen=True, kw_only=True):
    """One configuration of one kernel, loaded. ``spills``: 32-bit values that a thread keeps in memory."""

    config: dict[str, int | float | str] = msgspec.field(default_factory=dict)
    registers: int | None = None
    spills: int | None = None
    shared_memory_bytes: int | None = None


class Loaded(CompileRow, frozen=True, kw_only=True):
    """One kernel's launchers: all that were made or, where ``final``, those that were left at the end."""

    kernel: str
    path: str = ""
    final: bool = False
    launchers: tuple[LoadedConfiguration, ...] = ()


decoder = msgspec.json.Decoder(Loaded)


def fill(kernels: Iterable[CompiledKernel], loaded: Iterable[Loaded]) -> tuple[CompiledKernel, ...]:
    """The kernels with what is known of them once loaded.

    A kernel is found by the file of its source, else by its name where only one file has it. Where several
    configurations are left (it was never run), only what they agree on is given.
    """
    files: dict[str, list[Loaded]] = {}
    names: dict[str, set[str]] = {}
    for row in loaded:
        file = _file(row.path)
        files.setdefault(file, []).append(row)
        names.setdefault(row.kernel, set()).add(file)
    return tuple(_filled(kernel, files, names) for kernel in kernels)


def _filled(
    kernel: CompiledKernel, files: dict[str, list[Loaded]], names: dict[str, set[str]]
) -> CompiledKernel:
    file = _file(kernel.path or "")
    if not file or file not in files:
        named = names.get(kernel.name, set()) | names.get(kernel.symbol, set())
        if len(named) != 1:
            return kernel
        (file,) = named
    rows = files[file]
    last = next((row for row in reversed(rows) if row.final and row.launchers), rows[-1])
    tried = {tuple(sorted(map(str, one.config.items()))): one for row in rows for one in row.launchers}
    settled = kernel.config is None and len(last.launchers) == 1
    config = (
        ", ".join(f"{name}={value}" for name, value in last.launchers[0].config.items()) if settled else None
    )
    return msgspec.structs.replace(
        kernel,
        registers=_agreed(one.registers for one in last.launchers),
        spills=_agreed(one.spills for one in last.launchers),
        shared_memory_bytes=_agreed(one.shared_memory_bytes for one in last.launchers),
        configs=kernel.configs if kernel.configs is not None else len(tried) or None,
        configs_that_spill=sum(bool(one.spills) for one in tried.values()),
        config=kernel.config or config,
    )


def _agreed(values: Iterable[int | None]) -> int | None:
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _file(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2]
