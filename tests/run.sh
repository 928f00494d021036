#!/usr/bin/env bash
# Runs all tests, whatever fails, then tells how many were skipped and why: cargo counts those as passed.
set -uo pipefail

LAB_SKIPPED_TESTS=$(mktemp)
export LAB_SKIPPED_TESTS
# Most tests on real servers wait for something; more at once than there are cores.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-4}"
trap 'rm -f "$LAB_SKIPPED_TESTS"' EXIT
"${CARGO:-cargo}" test --workspace --all-features --no-fail-fast "$@"
status=$?
[ $status -eq 0 ] || printf '\nsome tests FAILED: see above\n'
printf '\n%s skipped\n' "$(wc -l < "$LAB_SKIPPED_TESTS")"
sort "$LAB_SKIPPED_TESTS" | sed 's/^/  /'
exit $status
