#!/usr/bin/env bash
# Installs what the tests need and this machine lacks. Only root can; otherwise the tests that miss something say so
# and count as skipped.
set -euo pipefail

need=()
[ -n "$(ls -d /usr/lib/postgresql/*/bin/postgres 2>/dev/null)" ] || need+=(postgresql)
[ -e /usr/lib/x86_64-linux-gnu/libpq.so.5 ] || need+=(libpq5)
[ -x /usr/sbin/pgbouncer ] || need+=(pgbouncer)
command -v openssl >/dev/null || need+=(openssl)
# The C interface's tests.
[ -e /usr/include/postgresql/libpq-fe.h ] || need+=(libpq-dev)
command -v gcc >/dev/null && command -v g++ >/dev/null || need+=(build-essential)
for tool in clang cmake mandoc pkg-config valgrind; do
  command -v "$tool" >/dev/null || need+=("$tool")
done
[ ${#need[@]} -gt 0 ] || exit 0
without() {
  echo "tests/setup.sh: not installed: ${need[*]} ($1); the tests that use them are skipped" >&2
  exit 0
}
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || without "needs root and apt"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq || without "apt-get update failed"
# PgBouncer's package starts a service; the tests start their own.
printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d && chmod +x /usr/sbin/policy-rc.d
trap 'rm -f /usr/sbin/policy-rc.d' EXIT
apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null || without "apt-get install failed"
