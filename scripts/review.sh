#!/usr/bin/env bash
# Record a program at the base of a pull request and as it is here, in turn, compare, and say so in the review.
# action.yml runs this; without GitHub's variables it does the same on any machine.
#
#   BASE      commit to compare with          PROGRAM   script and arguments
#   REPEATS   runs of each (default 1)        FAIL_ON   gates, one a line
#   OUT       folder for what is made         OPTIONS   of `kinetoscope run`
#   PYTHON    interpreter (default python)
set -euo pipefail

: "${BASE:?commit to compare with}" "${PROGRAM:?script and arguments}"
OUT=$(mkdir -p "${OUT:-kinetoscope-review}" && cd "${OUT:-kinetoscope-review}" && pwd)
PYTHON=${PYTHON:-python} REPEATS=${REPEATS:-1}
read -ra program <<<"$PROGRAM"
read -ra options <<<"${OPTIONS:-}"

tree=$(mktemp -d)/base
git worktree add --quiet --detach "$tree" "$BASE"
trap 'git worktree remove --force "$tree"; rmdir "$(dirname "$tree")"' EXIT
below=$(git rev-parse --show-prefix)

record() { # side, number
    local folder=$PWD
    [ "$1" = base ] && folder=$tree/$below
    (cd "$folder" && "$PYTHON" -m kinetoscope run --no-report --out "$OUT/$1/$2" "${options[@]}" -- "${program[@]}")
}

for number in $(seq "$REPEATS"); do
    # A B, B A, …: what drifts slowly harms both alike.
    if [ $((number % 2)) = 1 ]; then sides=(base head); else sides=(head base); fi
    for side in "${sides[@]}"; do record "$side" "$number"; done
done

gates=()
while IFS= read -r gate; do
    [ -n "${gate// /}" ] && gates+=(--fail-on "$gate")
done <<<"${FAIL_ON:-}"

status=0
"$PYTHON" -m kinetoscope diff "$OUT/base" "$OUT/head" --github "${gates[@]}" \
    -o "$OUT/difference.html" -o "$OUT/difference.md" || status=$?
# The page is among what the action uploads: the review leads to the run that has it.
if [ -n "${GITHUB_RUN_ID:-}" ] && [ -f "$OUT/difference.md" ]; then
    printf '\n[Both steps drawn, and every row: difference.html of this run](%s/%s/actions/runs/%s#artifacts)\n' \
        "$GITHUB_SERVER_URL" "$GITHUB_REPOSITORY" "$GITHUB_RUN_ID" >>"$OUT/difference.md"
fi
"$PYTHON" -m kinetoscope report "$OUT/head/1" -o "$OUT/findings.sarif"
exit "$status"
