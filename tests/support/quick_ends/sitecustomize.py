"""Found by interpreters that tests start, most of which run a short program that imports torch. There is no
garbage: it is hardly looked for meanwhile, a tenth of the import, nor at the end, a third of the program.
Functions at exit run before. What ops do to tensors without data is a quarter of the import: it is loaded for
programs that compile."""

import atexit
import gc
import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

gc.set_threshold(100_000, 20, 20)
atexit.register(gc.freeze)

METAS = "torch._meta_registrations"
ASKED_BY = ("torch._decomp", "torch._dynamo", "torch._inductor", "torch._prims", "torch._refs")


class LoadsMetas:
    """Gives torch an empty module, and its own before any module is loaded that asks for it."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == METAS:
            return ModuleSpec(name, self)
        if name in ASKED_BY:
            sys.meta_path.remove(self)
            del sys.modules[METAS]
            importlib.import_module(METAS)
        return None

    def create_module(self, spec: ModuleSpec) -> None: ...

    def exec_module(self, module: ModuleType) -> None: ...


sys.meta_path.insert(0, LoadsMetas())
