#!/bin/sh
# Capture, compile and report tests under each Python that is here with each torch that pip can get.
#   sh scripts/matrix.sh [FILE]                 the table, also into FILE
#   PYTHONS="3.10 3.14" TORCHES="2.9.1 2.15.0" sh scripts/matrix.sh
#   TESTS="tests/unit/capture" sh scripts/matrix.sh
#   TORCH_INDEX=URL sh scripts/matrix.sh        where torch comes from (an index of CPU builds is a tenth of the size)
set -u
cd "$(dirname "$0")/.."
table=${1:-/dev/null}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
tests=${TESTS:-tests/unit/test_package.py tests/unit/capture tests/unit/compilation tests/integration/test_cli_report.py
tests/integration/test_run_steps.py tests/integration/test_run_compiled.py tests/integration/test_compile_live.py}

say() { printf '| %s | %s | %s |\n' "$1" "$2" "$3" | tee -a "$table"; }

: >"$table"
say Python torch 'capture, compile and report tests'
say --- --- ---
for version in ${PYTHONS:-3.10 3.11 3.12 3.13 3.14}; do
    "python$version" -c '' 2>/dev/null || { say "$version" - 'not here'; continue; }
    for torch in ${TORCHES:-2.9.1 2.10.0 2.11.0 2.12.1 2.13.0 2.14.1 2.15.0}; do
        room=$work/room
        rm -rf "$room"
        "python$version" -m venv "$room"
        if ! "$room/bin/pip" -q install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "torch==$torch" >"$work/log" 2>&1; then
            say "$version" "$torch" 'could not be had'
            continue
        fi
        "$room/bin/pip" -q install numpy pytest pytest-timeout hypothesis psutil zstandard isal zlib-ng -e . >"$work/log" 2>&1
        # shellcheck disable=SC2086
        "$room/bin/python" -m pytest -p no:cacheprovider $tests >"$work/log" 2>&1
        status=$?
        say "$version" "$torch" "$(tail -1 "$work/log" | sed 's/ in .*//; s/=//g; s/^ *//')$([ $status -eq 0 ] || echo ' (failed)')"
        [ $status -eq 0 ] || grep '^FAILED\|^ERROR' "$work/log" >&2
    done
done
