#!/usr/bin/env bash
# Runs all tests, then tells how many were skipped and why: cargo counts those as passed, for it knows nothing else.
set -uo pipefail

LAB_SKIPPED_TESTS=$(mktemp)
export LAB_SKIPPED_TESTS
trap 'rm -f "$LAB_SKIPPED_TESTS"' EXIT
"${CARGO:-cargo}" test --workspace "$@"
status=$?
printf '\n%s skipped\n' "$(wc -l < "$LAB_SKIPPED_TESTS")"
sort "$LAB_SKIPPED_TESTS" | sed 's/^/  /'
exit $status
