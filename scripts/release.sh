#!/bin/sh
# The wheel and the sdist, built twice to the same bytes, and the wheel tried bare, without torch, in every Python here.
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

mkdir -p "$out"
cp "$work"/first/* "$out"
if "$work/build/bin/pip" -q install cyclonedx-bom 2>/dev/null; then
    rm -f "$bare"/lib/python*/site-packages/kinetoscope-*.dist-info/direct_url.json  # a path of this machine
    "$work/build/bin/cyclonedx-py" environment --output-reproducible -o "$out/sbom.json" "$bare/bin/python"
fi
ls "$out"
