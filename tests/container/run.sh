#!/usr/bin/env bash
# Builds the final stage of deploy/Dockerfile from the binary at hand, without a container engine and without a registry,
# and runs it: not as root, answering /readyz and a query, healthy by its own health check, keeping data over a restart.
#
# The base image is made once by debootstrap and kept in TERRACE_TEST_CACHE. Needs root.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
: "${TERRACE_BIN:=${CARGO_TARGET_DIR:-$top/target}/release/terrace}"
: "${TERRACE_TEST_CACHE:=$top/tests/.work}"
[ -x "$TERRACE_BIN" ] || { echo "no binary at $TERRACE_BIN; cargo build --release" >&2; exit 1; }
TERRACE_BIN=$(realpath "$TERRACE_BIN")
mkdir -p "$TERRACE_TEST_CACHE"
if ! { command -v buildah && command -v debootstrap; } >/dev/null; then
    apt-get -qq update >/dev/null
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends buildah debootstrap >/dev/null
fi

base="$TERRACE_TEST_CACHE/debian-base"
if [ ! -d "$base" ]; then
    rm -rf "$base.tmp"
    debootstrap --variant=minbase bookworm "$base.tmp" http://deb.debian.org/debian > "$base.log" 2>&1 ||
        { tail -20 "$base.log" >&2; exit 1; }
    mv "$base.tmp" "$base"
fi

work=$(mktemp -d "$TERRACE_TEST_CACHE/container.XXXXXX")
# A storage of its own: nothing of the machine's images is seen or touched.
export CONTAINERS_STORAGE_CONF="$work/storage.conf"
server=
cleanup() {
    stop 2>/dev/null || true
    buildah rm --all >/dev/null 2>&1 || true
    buildah rmi --all --force >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap cleanup EXIT
printf '[storage]\ndriver = "vfs"\nrunroot = "%s/run"\ngraphroot = "%s/graph"\n' "$work" "$work" > "$CONTAINERS_STORAGE_CONF"
printf '{"default":[{"type":"insecureAcceptAnything"}]}' > "$work/policy.json"
say() { echo "-- $*"; }
fail() { echo "FAILED: $*" >&2; cat "$work/server.log" >&2 2>/dev/null || true; exit 1; }

say "final stage of deploy/Dockerfile"
"$top/deploy/package.sh" "$TERRACE_BIN" "$work/dist"
[ "$(stat -c %s "$work/dist/terrace")" -lt "$(stat -c %s "$TERRACE_BIN")" ] || fail "the packed program still has its symbols"
readelf -p .gnu_debuglink "$work/dist/terrace" | grep -q terrace.debug || fail "no link to the symbols"
"$top/deploy/image.sh" --base "$base" "$work/dist" localhost/terrace >/dev/null

config=$(buildah inspect --type image localhost/terrace)
python3 - "$config" <<'PYTHON'
import json, sys
config = json.loads(sys.argv[1])["Docker"]["config"]
assert config["User"] == "10001:10001", config["User"]
assert config["Entrypoint"] == ["/usr/local/bin/terrace"] and config["Cmd"] == ["serve"], config
assert config["Healthcheck"]["Test"] == ["CMD", "/usr/local/bin/terrace", "health"], config["Healthcheck"]
assert "/var/lib/terrace" in config["Volumes"] and set(config["ExposedPorts"]) == {"31337/tcp", "8080/tcp", "8081/tcp"}, config
PYTHON

say "refuses to be open on all interfaces without a password"
container=$(buildah from --signature-policy "$work/policy.json" localhost/terrace)
inside() { timeout 60 buildah run --isolation chroot "$@"; }
inside "$container" -- test -w /var/backups/terrace || fail "the server cannot write backups"
if inside "$container" -- /usr/local/bin/terrace serve > "$work/open.log" 2>&1; then fail "started without a password"; fi
grep -qi password "$work/open.log" || { cat "$work/open.log" >&2; fail "the refusal does not name the password"; }

if inside --env TERRACE_USER=ada --env TERRACE_PASSWORD=lace "$container" -- /usr/local/bin/terrace serve > "$work/clear.log" 2>&1; then
    fail "started without TLS"
fi
grep -q insecure-listen "$work/clear.log" || { cat "$work/clear.log" >&2; fail "the refusal does not say what to do without TLS"; }

"$top/deploy/certificates.sh" "$work/tls" localhost 127.0.0.1
ca="$work/tls/ca.crt"
buildah copy -q --chown 10001:10001 "$container" "$work/tls" /etc/terrace/tls >/dev/null

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
flight=$(free_port); http=$(free_port); health=$(free_port)
start() {
    buildah run --isolation chroot --env TERRACE_USER=ada --env TERRACE_PASSWORD=lace \
        --env "TERRACE_FLIGHT_ADDR=0.0.0.0:$flight" --env "TERRACE_HTTP_ADDR=0.0.0.0:$http" \
        --env "TERRACE_HTTP_HEALTH_ADDR=0.0.0.0:$health" \
        --env TERRACE_TLS_CERT=/etc/terrace/tls/server.crt --env TERRACE_TLS_KEY=/etc/terrace/tls/server.key \
        --env TERRACE_MEMORY_LIMIT=1GiB "$container" -- /usr/local/bin/terrace serve > "$work/server.log" 2>&1 &
    server=$!
    for _ in $(seq 150); do
        curl -sf --cacert "$ca" -o "$work/ready" "https://127.0.0.1:$http/readyz" && return
        kill -0 "$server" 2>/dev/null || fail "the server ended"
        sleep 0.2
    done
    fail "not ready after 30 s"
}
server_pid() { # the server is a grandchild; ours is known by its port
    for pid in $(pgrep -f "^/usr/local/bin/terrace serve" || true); do
        if grep -qz "TERRACE_HTTP_ADDR=0.0.0.0:${http:-none}" "/proc/$pid/environ"; then echo "$pid"; fi
    done
}
stop() { # buildah does not pass signals on
    [ -n "$server" ] || return 0
    local pid; pid=$(server_pid)
    [ -z "$pid" ] || kill -TERM "$pid"
    wait "$server" || true
    server=
}
query() { env -u TERRACE_BIN -u TERRACE_TEST_CACHE TERRACE_USER=ada TERRACE_PASSWORD=lace "$TERRACE_BIN" sql --url "grpc+tls://127.0.0.1:$flight" --ca "$ca" --format csv "$1"; }

say "run it"
start
grep -q '"status":"ready"' "$work/ready" || fail "/readyz says $(cat "$work/ready")"
pid=$(server_pid)
grep -q '^Uid:.10001' "/proc/$pid/status" || fail "runs as $(grep Uid "/proc/$pid/status")"
query "CREATE TABLE t AS SELECT 40 AS n UNION ALL SELECT 2" >/dev/null || fail "CREATE TABLE"
[ "$(query 'SELECT sum(n) AS s FROM t' | tail -1)" = 42 ] || fail "the answer is not 42"
code=$(curl -s --cacert "$ca" -o /dev/null -w '%{http_code}' "https://127.0.0.1:$http/api/v1/tiers")
[ "$code" = 401 ] || fail "the API answers $code without a password"
curl -sf --cacert "$ca" -u ada:lace "https://127.0.0.1:$http/api/v1/tiers" | grep -q '"name":"ssd"' || fail "the API with the password"
say "health check"
inside --env "TERRACE_HTTP_HEALTH_ADDR=0.0.0.0:$health" "$container" -- /usr/local/bin/terrace health | grep -q yes || fail "health"
say "stop and start again"
stop
if inside --env "TERRACE_HTTP_HEALTH_ADDR=0.0.0.0:$health" "$container" -- /usr/local/bin/terrace health >/dev/null 2>&1; then
    fail "healthy without a server"
fi
start
[ "$(query 'SELECT sum(n) AS s FROM t' | tail -1)" = 42 ] || fail "the data is gone after a restart"
stop

say "a release"
"$top/deploy/release.sh" --base "$base" "$TERRACE_BIN" "$work/release" >/dev/null
(cd "$work/release" && sha256sum --quiet -c SHA256SUMS) || fail "checksums"
mkdir "$work/unpacked"
version=$("$TERRACE_BIN" --version)
name=terrace-$(cut -d' ' -f2 <<<"$version")-linux-$(uname -m)
tar -xzf "$work/release/$name.tar.gz" -C "$work/unpacked"
[ "$("$work/unpacked/$name/terrace" --version)" = "$version" ] || fail "the archive has another program"
loaded=$(buildah from --signature-policy "$work/policy.json" "docker-archive:$work/release/$name-image.tar")
[ "$(inside "$loaded" -- /usr/local/bin/terrace --version)" = "$version" ] || fail "the image has another program"
echo "container: all checks passed"
