#!/usr/bin/env bash
# Makes include/pgfollow.h from ffi-c/src; with --check it only says whether the file is what would be made.
# The generator's version is fixed: another one's output differs.
set -euo pipefail
cd "$(dirname "$0")"
version=0.29.4
tools=../target/tools
cbindgen=$tools/bin/cbindgen
if [ "$("$cbindgen" --version 2>/dev/null)" != "cbindgen $version" ]; then
  "${CARGO:-cargo}" install --locked --quiet "cbindgen@$version" --root "$tools"
fi
made=$(mktemp)
trap 'rm -f "$made"' EXIT
# What it says of things that aren't in the interface is no news.
"$cbindgen" --quiet --config cbindgen.toml --crate pgfollow-c --output "$made" .
if [ "${1-}" = --check ]; then
  diff -u ../include/pgfollow.h "$made" || { echo "include/pgfollow.h is stale: make gen" >&2; exit 1; }
else
  cp "$made" ../include/pgfollow.h
fi
