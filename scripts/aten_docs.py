"""Write what torch's own docstrings say of its ops, a sentence each, for the glossary of compiled graphs.

    python scripts/aten_docs.py src/kinetoscope/compilation/aten_docs.json

Made with torch 2.13.0. Our own few words, which the file holds before torch's, are kept; add and change them
there. An op is looked up as torch.OP, torch.special.OP, torch.nn.functional.OP and
torch.Tensor.OP; the first that has a docstring gives its first sentence, without markup. Torch's licence
(BSD-3-Clause) goes with them.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import files
from pathlib import Path

import torch

SIGNATURE = re.compile(r"^\s*[\w.]+\(.*?\)(?:\s*->\s*[^\n]*)?$", re.DOTALL)
ROLE = re.compile(r":[\w:]+:`~?(?:[^`<]*\.)?([^`<.]+?)(?:\(\))?(?:\s*<[^`]*>)?`")
ANOTHER_NAME = re.compile(r"^(?:Alias (?:for|of)|(?:Out-of-place|Out-place|In-place) version of) (\w+)")
SENTENCE = re.compile(r"(?<!\be\.g)(?<!\bi\.e)\.(?=\s|$)")
LONGEST = 160


def sentence(doc: str) -> str | None:
    """The first sentence of a docstring's prose."""
    paragraphs = [p.strip() for p in re.split(r"\n\s*\n", doc)]
    prose = [
        p for p in paragraphs if p and not SIGNATURE.match(p) and not p.startswith((".. ", "Args", "See "))
    ]
    if not prose:
        return None
    text = " ".join(prose[0].split())
    text = re.sub(r"^\w+\([^)]*\)(?: -> [\w ,()]+?)? (?=[A-Z])", "", text)
    text = ROLE.sub(r"\1", text).replace("``", "").replace("*", "")
    text = SENTENCE.split(text)[0].strip()
    markup = re.search(r"[`\\{}]|::|https?:", text)
    return None if markup or not 8 <= len(text) <= LONGEST or not text[0].isupper() else text


def described(op: str, seen: frozenset[str] = frozenset()) -> str | None:
    """What torch says of the op, or of the one that it is another name of."""
    for home in (torch, torch.special, torch.nn.functional, torch.Tensor):
        function = getattr(home, op, None)
        found = sentence(function.__doc__ or "") if callable(function) else None
        other = ANOTHER_NAME.match(found or "")
        if other and other[1] not in {op, *seen}:
            found, other = described(other[1], seen | {op}), None
        if found and not other:
            return found
    return None


def license_text() -> list[str]:
    path = next(file for file in files("torch") or () if file.name == "LICENSE" and "third" not in str(file))
    text = Path(path.locate()).read_text()
    end = text.index("POSSIBILITY OF SUCH DAMAGE.") + len("POSSIBILITY OF SUCH DAMAGE.")
    return text[:end].splitlines()


def main(target: str) -> None:
    schemas = torch._C._jit_get_all_schemas()
    names = {schema.name.partition("::")[2] for schema in schemas if schema.name.startswith("aten::")}
    own = {op: words[0] for op, words in json.loads(Path(target).read_text())["ops"].items() if words[0]}
    plain = {op.removesuffix("_") or op for op in names if not op.startswith("__")}  # in place it is the same
    docs = {op: sentence for op in plain if (sentence := described(op))}
    head = {
        "source": "our own words, and the first sentences of the docstrings of "
        f"PyTorch {torch.__version__.split('+')[0]}, markup removed",
        "made_by": "scripts/aten_docs.py",
        "license": license_text(),
    }
    lines = (f"  {_json(op)}: {_json([own.get(op), docs.get(op)])}" for op in sorted({*own, *docs}))
    text = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}")
    Path(target).write_text(f'{text},\n "ops": {{\n' + ",\n".join(lines) + "\n }\n}\n")
    print(f"{len(docs)} of {len(names)} ops", file=sys.stderr)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    main(sys.argv[1])
