# Every step of CI is a target here; `.ci/run` calls them. JOBS, RUNS, SEEDS and FAILOVERS may be set.
.PHONY: check test proof fmt clippy doc deny gen gen-check bench drill setup install

CARGO ?= cargo
export CARGO_TERM_COLOR ?= auto

# All that must hold before a commit lands.
check: fmt clippy doc deny gen-check

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

# C's status numbers from the core's table, the header from ffi-c/src, the man pages from the header.
abi_test = UPDATE=1 $(CARGO) test --quiet -p pgfollow-c --all-features --test abi
gen:
	$(abi_test) a_code_that_the_core_has
	@CARGO="$(CARGO)" ffi-c/header.sh
	$(abi_test) man_pages_and_none_is_stale

gen-check:
	@CARGO="$(CARGO)" ffi-c/header.sh --check

# The C library: header, libpgfollow.so and .a, pkg-config and CMake files. PREFIX (/usr/local) and DESTDIR may be set.
install:
	$(CARGO) build --release -p pgfollow-c
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" ffi-c/install.sh target/release

# Installs what the tests need (apt only as root), runs rings 1 to 4, and says what was skipped.
test: setup
	@CARGO="$(CARGO)" tests/run.sh

# What takes long: the simulation at length; on real servers each fault's explanation (RUNS times), each on two versions,
# and one process through RUNS real failovers (50 without RUNS: some ten minutes). Run again, it resumes.
proof:
	@CARGO="$(CARGO)" tests/proof.sh

setup:
	@tests/setup.sh

bench:
	$(CARGO) run --release -p pgfollow-bench

drill:
	$(CARGO) run --release -p pgfollow-cli -- drill
