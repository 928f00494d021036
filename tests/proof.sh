#!/usr/bin/env bash
# `make proof`: what takes too long for each commit. It resumes: a step that has passed on this very commit isn't run
# again, and its output stays in target/proof. With changes that aren't committed everything is run.
# SEEDS, RUNS, FAILOVERS: how much.
set -uo pipefail

cargo=${CARGO:-cargo}
done_in=target/proof/$(git rev-parse HEAD 2>/dev/null || echo unversioned)
if [ -n "$(git status --porcelain 2>/dev/null || echo unversioned)" ]; then
  done_in=target/proof/changed
  rm -rf "$done_in"
fi
mkdir -p "$done_in"

# step NAME COMMAND...
step() {
  local name=$1
  shift
  if [ -e "$done_in/$name.passed" ]; then
    printf '\n== %s: passed before\n' "$name"
    return
  fi
  printf '\n== %s\n' "$name"
  "$@" 2>&1 | tee "$done_in/$name.txt" || { printf '\n%s FAILED\n' "$name"; exit 1; }
  touch "$done_in/$name.passed"
}

# The simulation, optimised: it spends all of its time computing. Seeds in parts, so that little is lost by an end.
seeds=${SEEDS:-10000}
for ((from = 0; from < seeds; from += 1000)); do
  part=$((seeds - from < 1000 ? seeds - from : 1000))
  step "seeds-$from-$part" env FROM=$from SEEDS=$part "$cargo" test --release -p pgfollow-sim --test model -- \
    --nocapture --exact seeds::whatever_goes_wrong_nothing_is_lost_doubled_or_said_wrongly
done
step failovers env FAILOVERS="${FAILOVERS:-1000}" "$cargo" test --release -p pgfollow-sim --test thousand -- --nocapture
step fleets "$cargo" test --release -p pgfollow-sim --test model fleet:: -- --nocapture --include-ignored

# On real servers: each fault's explanation, each on two versions, and one process through many failovers.
step causes env RUNS="${RUNS:-1}" "$cargo" test -p pgfollow-cli --test drill_causes -- --nocapture --include-ignored \
  --test-threads 1
for major in 15 18; do
  step "report-$major" env LAB_PG_MAJOR=$major "$cargo" test -p pgfollow --test real report:: -- --nocapture --test-threads 1
done
step soak env RUNS="${RUNS:-50}" "$cargo" test -p pgfollow-cli --test soak -- --nocapture

printf '\n== all passed; the simulation:\n'
grep -h 'acknowledged, .* unknown (\|lost, \|tokens asked for' "$done_in"/seeds-*.txt
