#!/usr/bin/env bash
# Runs the JDBC tests against a real server. TERRACE_BIN names the binary.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary=${TERRACE_BIN:-$here/../../target/release/terrace}
work=$(mktemp -d)
server=
trap '[ -n "$server" ] && kill "$server" 2>/dev/null && wait "$server" 2>/dev/null; rm -rf "$work"' EXIT

"$binary" serve --data-dir "$work/data" --flight-addr 127.0.0.1:0 --http-addr 127.0.0.1:0 \
    --ready-file "$work/ready.json" >"$work/log" 2>&1 &
server=$!
for _ in $(seq 600); do
    [ -s "$work/ready.json" ] && break
    kill -0 "$server" 2>/dev/null || { cat "$work/log"; exit 1; }
    sleep 0.1
done
TERRACE_FLIGHT_URI="grpc://$(sed -n 's/.*"flight": *"\([^"]*\)".*/\1/p' "$work/ready.json")"
export TERRACE_FLIGHT_URI
cd "$here"
mvn -B -ntp -Dsurefire.useFile=false test
