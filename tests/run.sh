#!/usr/bin/env bash
# Runs all tests of Terrace, or the suites named as arguments. Installs what they need (apt-get, pip, npm, Maven).
#
#   tests/run.sh                      everything
#   tests/run.sh rust python          only these
#
# Suites: lint rust python tpcds java browser observability container dax
# Environment: CARGO_TARGET_DIR (build folder), TERRACE_TEST_CACHE (kernels, images, virtual environment; default tests/.work)
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"

export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$top/target}"
export TERRACE_TEST_CACHE="${TERRACE_TEST_CACHE:-$(dirname "$CARGO_TARGET_DIR")/terrace-test-cache}"
[ "$CARGO_TARGET_DIR" = "$top/target" ] && TERRACE_TEST_CACHE="$top/tests/.work"
export TERRACE_BIN="$CARGO_TARGET_DIR/release/terrace"
mkdir -p "$TERRACE_TEST_CACHE"

suites=("$@")
[ ${#suites[@]} -eq 0 ] && suites=(lint rust python tpcds java browser observability container dax)
passed=0
failed=()

need() { # need COMMAND PACKAGE...: installs Debian packages when a command is missing
    local command=$1; shift
    command -v "$command" >/dev/null && return
    if [ "$(id -u)" != 0 ]; then
        echo "'$command' is missing; as root: apt-get install $*" >&2
        return 1
    fi
    apt-get -qq update >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@" >/dev/null
}

venv() { # the Python environment of the tests, made once
    export VIRTUAL_ENV="$TERRACE_TEST_CACHE/venv"
    export PATH="$VIRTUAL_ENV/bin:$PATH"
    local want; want=$(cat "$top"/tests/python/requirements.txt | sha256sum)
    if [ "$(cat "$VIRTUAL_ENV/.requirements" 2>/dev/null)" != "$want" ]; then
        python3 -m venv "$VIRTUAL_ENV"
        pip install --quiet --disable-pip-version-check -r tests/python/requirements.txt
        echo "$want" > "$VIRTUAL_ENV/.requirements"
    fi
}

deny() { # checks licences, sources and bans of the dependencies (deny.toml); builds cargo-deny once per machine
    local tools="$TERRACE_TEST_CACHE/cargo-tools"
    [ -x "$tools/bin/cargo-deny" ] ||
        cargo install --quiet --locked --version 0.20.2 --root "$tools" --target-dir "$tools/target" cargo-deny
    rm -rf "$tools/target"
    cargo fetch --quiet --locked
    "$tools/bin/cargo-deny" --offline --log-level error check bans licenses sources
}

build() { cargo build --release --locked --workspace --bins; }

suite_lint() {
    cargo fmt --all -- --check
    deny
    # In the release profile too: one set of artefacts for everything.
    cargo clippy --release --locked --workspace --all-targets -- -D warnings
}
suite_rust() { cargo test --release --locked --workspace --no-fail-fast; }
suite_python() { build && venv && python -m pytest -q tests/python; }
suite_tpcds() { build && venv && python -m pytest -q tests/tpcds; }
suite_java() { build && need mvn maven && tests/java/run.sh; }
suite_browser() { build && tests/browser/run.sh; }
suite_observability() { build && venv && tests/observability/run.sh; }
suite_container() { build && tests/container/run.sh; }
suite_dax() { tests/dax/run.sh; }

for suite in "${suites[@]}"; do
    echo "== $suite"
    start=$SECONDS
    # A subshell with its own `set -e`: `if` would switch it off inside the function.
    set +e
    (set -e; "suite_$suite")
    status=$?
    set -e
    if [ $status -eq 0 ]; then
        passed=$((passed + 1))
        echo "== $suite passed in $((SECONDS - start)) s"
    else
        failed+=("$suite")
        echo "== $suite FAILED after $((SECONDS - start)) s"
    fi
done

[ ${#failed[@]} -gt 0 ] && echo "failed suites: ${failed[*]}"
echo "suites: $passed passed, ${#failed[@]} failed"
[ ${#failed[@]} -eq 0 ]
