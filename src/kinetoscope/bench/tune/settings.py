"""The settings that `tune` tries: what is injected into a program, its label, the line to write for it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import msgspec

from kinetoscope.capture.compiler import backends as compilers
from kinetoscope.errors import UsageError

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
PRECISIONS = ("highest", "high", "medium")


class Setting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A setting to run a program under. ``mode`` None is eager: torch.compile returns its argument.

    With ``as_written`` the program's own calls of torch.compile stay as they are (and ``mode`` is None).
    """

    mode: str | None = None
    as_written: bool = False
    backend: str | None = None
    dynamic: bool | None = None
    matmul_precision: str | None = None
    batch: str | None = None

    @property
    def is_base(self) -> bool:
        """Eager, with nothing else changed: what every other setting of the same batch is compared with."""
        return self.is_eager and self.matmul_precision is None

    @property
    def is_eager(self) -> bool:
        return self.mode is None and not self.as_written

    @property
    def samples(self) -> int | None:
        """``batch`` as a number; None where it is none or something else."""
        return int(self.batch) if self.batch is not None and self.batch.isdecimal() else None

    @property
    def label(self) -> str:
        return self.name if self.batch is None else f"{self.name} batch={self.batch}"

    @property
    def name(self) -> str:
        """The label without the batch."""
        parts = ["as written" if self.as_written else "eager" if self.mode is None else self.mode]
        if self.backend is not None:
            parts.append(f"backend={self.backend}")
        if self.dynamic is not None:
            parts.append(f"dynamic={self.dynamic}")
        if self.matmul_precision is not None:
            parts.append(f"matmul={self.matmul_precision}")
        return " ".join(parts)

    def arguments(self) -> dict[str, object]:
        """Keyword arguments of ``torch.compile`` (not for eager)."""
        given: dict[str, object] = {}
        if self.backend in (None, "inductor"):
            given["mode"] = self.mode
        if self.backend is not None:
            given["backend"] = self.backend
        if self.dynamic is not None:
            given["dynamic"] = self.dynamic
        return given

    def lines(self, module: str | None = None) -> tuple[str, ...]:
        """The lines to write into the program to have this setting. ``module``: the class of the module to
        compile, where the program does not compile anything itself."""
        written: list[str] = []
        if self.matmul_precision is not None:
            written.append(f'torch.set_float32_matmul_precision("{self.matmul_precision}")')
        if self.mode is not None:
            backend = compilers.known(self.backend or "")
            if backend is not None and backend.imported:
                written.append(f"import {backend.module}  # registers the backend")
            words = ", ".join(
                f'{k}="{v}"' if isinstance(v, str) else f"{k}={v}"
                for k, v in self.arguments().items()
                if (k, v) != ("mode", "default")
            )
            if module is None:
                written.append(f"torch.compile(…{', ' if words else ''}{words})")
            else:
                written.append(f"model = torch.compile(model{', ' if words else ''}{words})  # the {module}")
        return tuple(written)


def written(given: Mapping[str, object]) -> Setting:
    """The setting that a program's own arguments of ``torch.compile`` are; as written where they say more."""
    mode, backend, dynamic = given.get("mode"), given.get("backend"), given.get("dynamic")
    plain = (
        isinstance(mode, str | None) and isinstance(backend, str | None) and isinstance(dynamic, bool | None)
    )
    if not plain or given.get("options") or given.get("disable"):
        return Setting(as_written=True)
    return Setting(
        mode=str(mode or "default"),
        backend=None if backend in (None, "inductor") else str(backend),
        dynamic=None if dynamic is None else bool(dynamic),
    )


def is_program(setting: Setting, own: Sequence[Setting]) -> bool:
    """Whether the program as it is written runs under this setting (its precision and batch apart). ``own``:
    what its calls of torch.compile say, each different one once; none where it has none."""
    if setting.as_written or len(own) > 1:
        return setting.as_written
    backend = None if setting.backend == "inductor" else setting.backend
    bare = msgspec.structs.replace(setting, backend=backend, matmul_precision=None, batch=None)
    return bare == own[0] if own else setting.is_eager


def with_program(settings: Sequence[Setting], own: Sequence[Setting]) -> list[Setting]:
    """The settings, and after each eager one the program as it is written, unless one of them is that."""
    if any(is_program(setting, own) for setting in settings):
        return list(settings)
    both: list[Setting] = []
    for setting in settings:
        both += (
            [setting, msgspec.structs.replace(setting, as_written=True)] if setting.is_eager else [setting]
        )
    return both


def named(
    modes: Sequence[str],
    *,
    backends: Sequence[str],
    dynamic: Sequence[str],
    precisions: Sequence[str],
    batches: Sequence[str],
) -> list[Setting]:
    """The settings that the options of `kinetoscope tune` name. Raises UsageError where there is no such
    mode, precision or value of dynamic, or a backend cannot be used here."""
    for option, words, known in (
        ("--modes", modes, ("eager", *MODES)),
        ("--matmul-precision", precisions, PRECISIONS),
        ("--dynamic", dynamic, ("true", "false")),
    ):
        for word in words:
            if word not in known:
                raise UsageError(f"{option}: there is no {word!r}", hint=f"one or more of {','.join(known)}")
    for name in backends:
        backend = compilers.known(name)
        if backend is not None and backend.needs:
            raise UsageError(
                f"--backends: {name} cannot be used here",
                hint=f"{backend.needs} (`kinetoscope doctor` lists every backend)",
            )
    return grid(
        [mode for mode in modes or MODES if mode != "eager"],
        backends=backends,
        dynamic=[word == "true" for word in dynamic],
        precisions=precisions,
        batches=batches,
    )


def grid(
    modes: Sequence[str],
    *,
    backends: Sequence[str] = (),
    dynamic: Sequence[bool] = (),
    precisions: Sequence[str] = (),
    batches: Sequence[str] = (),
) -> list[Setting]:
    """Every combination, eager first. Backends other than Inductor have no modes and come once each."""
    settings: list[Setting] = []
    for batch, precision in itertools.product(batches or (None,), (None, *precisions)):
        settings.append(Setting(matmul_precision=precision, batch=batch))
        for mode, backend, shape in itertools.product(modes, backends or (None,), dynamic or (None,)):
            setting = Setting(
                mode=mode if backend in (None, "inductor") else "default",
                backend=backend,
                dynamic=shape,
                matmul_precision=precision,
                batch=batch,
            )
            if setting not in settings:
                settings.append(setting)
    return settings
