"""Found by the interpreter of a program that `kinetoscope run` started, before the program's first line.

Hides every trace of itself, runs the `sitecustomize` it stood in front of, and waits for the program to
import torch.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _stand_back() -> None:
    """Run the environment's own `sitecustomize`, as if this one had not been there."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _begin() -> None:
    if "KINETOSCOPE_CAPTURE" not in os.environ:
        return
    home = os.environ["KINETOSCOPE_HOME"]
    sys.path.insert(0, home)
    try:
        from kinetoscope.capture.process.child import begin

        begin()
    except Exception as error:
        print(f"kinetoscope: not recording this process: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.path.remove(home)


try:
    _begin()
finally:
    _stand_back()
