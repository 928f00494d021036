# Every step of CI is a target here; `.ci/run` calls them. JOBS, RUNS and SEEDS may be set.
.PHONY: check test proof fmt clippy doc deny gen-check bench drill setup

CARGO ?= cargo
SEEDS ?= 10000
export CARGO_TERM_COLOR ?= auto

# All that must hold before a commit lands.
check: fmt clippy doc deny

fmt:
	$(CARGO) fmt --all --check

clippy:
	$(CARGO) clippy --workspace --all-targets --all-features -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --all-features --no-deps

# The advisory database can't be reached from the build machines, so it isn't asked.
deny:
	@command -v cargo-deny >/dev/null || $(CARGO) install --locked cargo-deny@0.20.2
	$(CARGO) deny check bans licenses sources

# Installs what the tests need (apt only as root), runs rings 1 to 4, and says what was skipped.
test: setup
	@CARGO="$(CARGO)" tests/run.sh

# What takes long: the simulation at length; on real servers each fault's explanation (RUNS times), each on two versions,
# and one process through RUNS real failovers (50 without RUNS: some ten minutes).
proof:
	SEEDS=$(SEEDS) $(CARGO) test -p pgfollow-sim --test seeds -- --nocapture
	FAILOVERS=1000 $(CARGO) test -p pgfollow-sim --test thousand -- --nocapture
	RUNS=$(or $(RUNS),1) $(CARGO) test -p pgfollow-cli --test drill_causes -- --nocapture --include-ignored --test-threads 1
	for major in 15 18; do \
		LAB_PG_MAJOR=$$major $(CARGO) test -p pgfollow --test real report:: -- --nocapture --test-threads 1 || exit 1; done
	RUNS=$(or $(RUNS),50) $(CARGO) test -p pgfollow-cli --test soak -- --nocapture

setup:
	@tests/setup.sh

bench:
	$(CARGO) run --release -p pgfollow-bench

drill:
	$(CARGO) run --release -p pgfollow-cli -- drill
