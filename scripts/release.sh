#!/bin/sh
# The wheel and the sdist, built twice to the same bytes, and the wheel tried bare, without torch, in every Python here;
# then as a stranger uses it: in an empty folder, with another environment's torch (PROGRAM_PYTHON, or .venv's).
#   sh scripts/release.sh [FOLDER]      leaves them, and a list of what they need (SBOM), in dist/ or FOLDER
#   PYTHONS="3.11 3.13" sh scripts/release.sh      with these Pythons only
set -eu
cd "$(dirname "$0")/.."
out=${1:-dist}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH PIP_DISABLE_PIP_VERSION_CHECK=1
trace=tests/fixtures/h200/mm_64_warm_eager.json.gz

${PYTHON:-python3} -m venv "$work/build"
"$work/build/bin/pip" -q install hatchling
for build in first second; do
    "$work/build/bin/hatchling" build -d "$work/$build" 2>/dev/null
done
diff -r "$work/first" "$work/second"

for version in ${PYTHONS:-3.10 3.11 3.12 3.13 3.14}; do
    "python$version" -c '' 2>/dev/null || { echo "python$version is not here"; continue; }
    bare=$work/$version
    "python$version" -m venv "$bare"
    "$bare/bin/pip" -q install --no-compile --no-warn-script-location "$work"/first/*.whl
    if "$bare/bin/python" -c 'import torch' 2>/dev/null; then echo "torch came with it" >&2; exit 1; fi
    "$bare/bin/kinetoscope" --help >/dev/null
    "$bare/bin/kinetoscope" report "$trace" 2>/dev/null | grep -q busy
    "$bare/bin/kinetoscope" report "$trace" -o "$bare/page.html" >/dev/null 2>&1
    test -s "$bare/page.html"
    "$bare/bin/python" -c 'import sys; print("works bare in", sys.version.split()[0])'
done


stranger=${PROGRAM_PYTHON:-$PWD/.venv/bin/python}
version=$("$stranger" -c 'import sys, torch; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || echo none)
if [ -x "$work/$version/bin/kinetoscope" ]; then
    mkdir "$work/empty"
    cat >"$work/empty/train.py" <<'PROGRAM'
import torch

model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(300):
    model(torch.randn(64, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
PROGRAM
    (
        cd "$work/empty"
        PATH=$work/$version/bin:$PATH
        kinetoscope run --no-report -o before -- "$stranger" train.py 2>/dev/null
        kinetoscope report before | grep -q 'As it runs\|As recorded\|as recorded\|as it runs'
        kinetoscope report before -o page.html 2>/dev/null && test -s page.html
        { timeout 10 kinetoscope view before || true; } 2>&1 | grep -q http://127.0.0.1
        kinetoscope check before --against baseline.json --update 2>/dev/null
        kinetoscope run --no-report -o after -- "$stranger" train.py 2>/dev/null
        kinetoscope check after --against baseline.json --fail-on 'ops > 0' >/dev/null
        kinetoscope completion bash | grep -q complete
    )
    echo "recorded, reported, viewed and checked from an empty folder, with the torch of another environment"
else
    echo "recording was not tried: $stranger has no torch, or its Python was not tried"
fi

mkdir -p "$out"
cp "$work"/first/* "$out"
if "$work/build/bin/pip" -q install cyclonedx-bom 2>/dev/null; then
    rm -f "$bare"/lib/python*/site-packages/kinetoscope-*.dist-info/direct_url.json  # a path of this machine
    "$work/build/bin/cyclonedx-py" environment --output-reproducible -o "$out/sbom.json" "$bare/bin/python"
fi
ls "$out"
