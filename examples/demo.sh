#!/bin/sh
# What `make demo` shows: where the time of a small transformer goes, compiled and eager, on the device that is here.
set -eu
bin=$1
cd "$(dirname "$0")/.."

say() { printf '\n\033[1m== %s\033[0m\n' "$*" >&2; }

say "A small Llama, trained with torch.compile"
"$bin/kinetoscope" run -- examples/llama.py --compile
say "The same model, eager"
"$bin/kinetoscope" run -- examples/llama.py

if ! "$bin/python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    say "No GPU here: this is what a recording from an H200 looks like"
    "$bin/kinetoscope" report examples/recordings/llama_train_compile.json.gz
    "$bin/kinetoscope" report examples/recordings/llama_train_compile.json.gz -o recordings/h200.html
    say "The same as a page: recordings/h200.html"
fi
