#!/usr/bin/env sh
# The page's source is checked and tested, and the bundle in the package is what it builds to. Where there is no
# Node, or its packages cannot be had, it says so: the Python tests still compare the bundle's digest.
set -eu
cd "$(dirname "$0")"
if ! command -v npm >/dev/null; then
    echo "web: not checked, there is no npm here"
    exit 0
fi
if ! npm ci --ignore-scripts --no-audit --no-fund --silent --prefer-offline 2>/dev/null; then
    echo "web: not checked, its packages cannot be had here"
    exit 0
fi
npm run --silent format
npm run --silent check
npm run --silent test
npm run --silent build -- --check
