"""Prove on a GPU that programs under `kinetoscope run` do what they do without it:

    PYTHONPATH=src python tests/gpu/harm.py --seeds 0-9 --jobs 8 --out harm.jsonl
    PYTHONPATH=src python tests/gpu/harm.py --sanitize            three of them under compute-sanitizer

prints a line a program, and ends with 1 where one differs. ``tests/harm/battery.py`` says how they are
compared.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harm.battery import main

if __name__ == "__main__":
    raise SystemExit(main())
