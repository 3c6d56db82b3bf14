#!/usr/bin/env bash
# Runs the JDBC tests against real servers: one with TLS, one that wants certificates of clients, one with a user and an issuer of
# tokens. TERRACE_BIN names the binary.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary=${TERRACE_BIN:-$here/../../target/release/terrace}
work=$(mktemp -d)
servers=()
trap '[ ${#servers[@]} -gt 0 ] && kill "${servers[@]}" 2>/dev/null && wait "${servers[@]}" 2>/dev/null; rm -rf "$work"' EXIT

serve() { # serve NAME OPTION...: starts a server and prints its address
    local name=$1; shift
    "$binary" serve --data-dir "$work/$name" --flight-addr 127.0.0.1:0 --http-addr 127.0.0.1:0 \
        --ready-file "$work/$name.json" "$@" >"$work/$name.log" 2>&1 &
    servers+=($!)
    for _ in $(seq 600); do
        [ -s "$work/$name.json" ] && return
        kill -0 "${servers[-1]}" 2>/dev/null || { cat "$work/$name.log"; exit 1; }
        sleep 0.1
    done
    exit 1
}
address() { sed -n 's/.*"flight": *"\([^"]*\)".*/\1/p' "$work/$1.json"; }

"$here/../../deploy/certificates.sh" "$work/tls" localhost
serve plain
serve encrypted --tls-cert "$work/tls/server.crt" --tls-key "$work/tls/server.key"
serve mutual --tls-cert "$work/tls/server.crt" --tls-key "$work/tls/server.key" --set "tls.client_ca=$work/tls/ca.crt"
python3 "$here/../python/issuer.py" "$work" >"$work/issuer" &
servers+=($!)
for _ in $(seq 300); do
    [ -s "$work/issuer" ] && break
    sleep 0.1
done
export TERRACE_TEST_ISSUER="$(cat "$work/issuer")"
[ -n "$TERRACE_TEST_ISSUER" ] || { echo "the issuer does not start" >&2; exit 1; }
TERRACE_USER=ada TERRACE_PASSWORD=lace serve closed --set "oidc.issuer=$TERRACE_TEST_ISSUER" --set oidc.audience=terrace
export TERRACE_TEST_CLOSED_ADDRESS="$(address closed)"
export TERRACE_FLIGHT_URI="grpc://$(address plain)"
export TERRACE_TEST_TLS_ADDRESS="localhost:$(address encrypted | sed 's/.*://')" TERRACE_TEST_TLS_CA="$work/tls/ca.crt"
export TERRACE_TEST_MUTUAL_ADDRESS="localhost:$(address mutual | sed 's/.*://')" TERRACE_TEST_TLS_FOLDER="$work/tls"
cd "$here"
mvn -B -ntp -Dsurefire.useFile=false test
