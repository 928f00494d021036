#!/usr/bin/env bash
# Runs all tests, whatever fails, then tells how many were skipped and why: cargo counts those as passed. What a part
# printed stands together, the simulation's last.
set -uo pipefail

LAB_SKIPPED_TESTS=$(mktemp)
simulation=$(mktemp)
trap 'rm -f "$LAB_SKIPPED_TESTS" "$simulation"' EXIT
export LAB_SKIPPED_TESTS
# Most tests on real servers wait for something; more at once than there are cores.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-8}"
cargo=("${CARGO:-cargo}" test --workspace --all-features --no-fail-fast)
host=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
export "CARGO_TARGET_${host}_RUNNER=$PWD/tests/part.sh"

"${cargo[@]}" --no-run || exit
# The simulation only computes: it takes the time in which the others wait.
PART=sim nice -n 19 "${cargo[@]}" --tests "$@" > "$simulation" 2>&1 &
PART=rest "${cargo[@]}" "$@"
status=$?
wait $! || status=$?
cat "$simulation"
[ $status -eq 0 ] || printf '\nsome tests FAILED: see above\n'
printf '\n%s skipped\n' "$(wc -l < "$LAB_SKIPPED_TESTS")"
sort "$LAB_SKIPPED_TESTS" | sed 's/^/  /'
exit $status
