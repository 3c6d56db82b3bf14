#!/usr/bin/env bash
# Tests the cockpit in headless Chromium against a real server with real data. Set SCREENSHOT_DIR to keep pictures.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
: "${TERRACE_BIN:=${CARGO_TARGET_DIR:-$top/target}/release/terrace}"
: "${TERRACE_TEST_CACHE:=$top/tests/.work}"
[ -x "$TERRACE_BIN" ] || { echo "no binary at $TERRACE_BIN; cargo build --release" >&2; exit 1; }
export TERRACE_BIN
if ! command -v chromium >/dev/null; then
    apt-get -qq update >/dev/null
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium >/dev/null
fi
modules="$TERRACE_TEST_CACHE/browser"
mkdir -p "$modules"
if ! cmp -s "$here/package-lock.json" "$modules/package-lock.json" || [ ! -d "$modules/node_modules" ]; then
    cp "$here/package.json" "$here/package-lock.json" "$modules/"
    (cd "$modules" && npm ci --no-audit --no-fund --loglevel=error)
fi
export NODE_MODULES="$modules/"
# The code of the page that needs none.
node --test "$here"/unit/*.test.mjs
# One after the other: each has a server and a browser.
exec timeout 600 node --test --test-concurrency=1 "$here"/{cockpit,access,work,nodes,proposals}.test.mjs
