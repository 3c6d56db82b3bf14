#!/usr/bin/env bash
# Tests metrics, dashboard, alerts and scrape configuration against a real server and a real Prometheus.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
: "${TERRACE_BIN:=${CARGO_TARGET_DIR:-$top/target}/release/terrace}"
: "${TERRACE_TEST_CACHE:=$top/tests/.work}"
[ -x "$TERRACE_BIN" ] || { echo "no binary at $TERRACE_BIN; cargo build --release" >&2; exit 1; }
export TERRACE_BIN
if ! { command -v prometheus && command -v promtool; } >/dev/null; then
    apt-get -qq update >/dev/null
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends prometheus >/dev/null
fi
venv="${VIRTUAL_ENV:-$TERRACE_TEST_CACHE/venv}"
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -c 'import pytest, grafana_foundation_sdk' 2>/dev/null ||
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"
exec timeout 400 "$venv/bin/python" -m pytest -q -p no:cacheprovider "$here"
