#!/bin/sh
# Cargo calls this for each program of tests, in its package's folder; it runs those of one PART.
case "$PWD" in
  */sim) part=sim ;;
  *) part=rest ;;
esac
[ "$part" = "$PART" ] || exit 0
exec "$@"
