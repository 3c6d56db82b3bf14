#!/usr/bin/env bash
# Runs the tests of Terrace, or the suites named as arguments. Installs what they need (apt-get, pip, npm, Maven).
#
#   tests/run.sh                      every suite; of the long tests a part, drawn anew each time
#   tests/run.sh deep                 every suite, all of it; the unit tests of unsafe code under AddressSanitizer, too
#   tests/run.sh rust python          only these suites
#   tests/run.sh deep rust            all of one suite
#
# Suites: lint rust python tpcds java browser observability container dax
# Environment: CARGO_TARGET_DIR (build folder), TERRACE_TEST_CACHE (kernels, images, virtual environment; default tests/.work),
# TERRACE_TEST_DRAW (the number, printed by each run, that decides which long tests it has, and seeds the random ones)
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"

export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$top/target}"
export TERRACE_TEST_CACHE="${TERRACE_TEST_CACHE:-$(dirname "$CARGO_TARGET_DIR")/terrace-test-cache}"
[ "$CARGO_TARGET_DIR" = "$top/target" ] && TERRACE_TEST_CACHE="$top/tests/.work"
export TERRACE_BIN="$CARGO_TARGET_DIR/release/terrace"
mkdir -p "$TERRACE_TEST_CACHE"

export TERRACE_TEST_DEPTH=default
[ "${1:-}" = deep ] && { TERRACE_TEST_DEPTH=deep; shift; }
export TERRACE_TEST_DRAW="${TERRACE_TEST_DRAW:-$((RANDOM * 32768 + RANDOM))}"
export PROPTEST_RNG_SEED="$TERRACE_TEST_DRAW"
suites=("$@")
[ ${#suites[@]} -eq 0 ] && suites=(lint rust python tpcds java browser observability container dax)
again="tests/run.sh"
[ "$TERRACE_TEST_DEPTH" = deep ] && again="$again deep"

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
    (
        flock 9 # suites of two lanes may come here at once
        [ "$(cat "$VIRTUAL_ENV/.requirements" 2>/dev/null)" = "$want" ] && exit
        python3 -m venv "$VIRTUAL_ENV"
        pip install --quiet --disable-pip-version-check -r tests/python/requirements.txt
        echo "$want" > "$VIRTUAL_ENV/.requirements"
    ) 9>"$TERRACE_TEST_CACHE/venv.lock"
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

sanitize() { # the unit tests of the crates with unsafe code, under AddressSanitizer, which rustc has behind a switch
    local skipped=(
        # Compare the times of memory and disk: the sanitizer slows down memory alone.
        tiers_are_measured_leave_nothing_behind_and_keep_their_order
        # Counts the bytes that its process reads: the larger program is read in meanwhile.
        counted_bytes_are_those_of_the_kernel
        # Counts the processor time of an idle process: the sanitizer uses some.
        an_idle_ring_uses_no_processor_time
    )
    # Leaks are not looked for: they are no fault of unsafe code. A part of the long tests is enough at this speed. This build
    # also checks the order of locks.
    # The C compiler builds the kernels of devices under its sanitizers, too.
    TERRACE_KERNEL_SANITIZER=1 TERRACE_TEST_DEPTH=default ASAN_OPTIONS=detect_leaks=0 RUSTC_BOOTSTRAP=1 \
        RUSTFLAGS="-Zsanitizer=address -Cdebuginfo=0" cargo test --release --locked --no-fail-fast --lib \
        --target x86_64-unknown-linux-gnu --target-dir "$CARGO_TARGET_DIR/sanitized" \
        --config profile.release.package.terrace-placement.debug-assertions=true \
        -p terrace-model -p terrace-device -p terrace-storage -p terrace-placement -p terrace-tier-store -p terrace-simulate \
        -- "${skipped[@]/#/--skip=}"
    # Above the store three files have unsafe code that rows of clients reach: flight/src/text.rs, scan/like.rs and
    # memory/credited.rs. Their crates bring DataFusion, which takes this build long; of their tests those run that come there.
    TERRACE_TEST_DEPTH=default ASAN_OPTIONS=detect_leaks=0 RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address -Cdebuginfo=0" \
        cargo test --release --locked --no-fail-fast --lib --target x86_64-unknown-linux-gnu --target-dir "$CARGO_TARGET_DIR/sanitized" \
        -p terrace-flight -p terrace-scan -p terrace-planner-ext \
        -- text::tests put::tests tests::fuzz::streams like::tests credited::tests
}

suite_lint() {
    cargo fmt --all -- --check
    deny
    # In the release profile too: one set of artefacts for everything.
    cargo clippy --release --locked --workspace --all-targets -- -D warnings
    # Maps of modules link to private ones.
    RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" cargo doc --quiet --release --locked --workspace --no-deps
}
suite_rust() {
    cargo test --release --locked --workspace --no-fail-fast
    for example in library policy; do # built by the line above
        echo "example $example"
        "$CARGO_TARGET_DIR/release/examples/$example"
    done
    [ "$TERRACE_TEST_DEPTH" = deep ] || return 0
    # The engine without hot views.
    cargo test --release --locked --no-fail-fast -p terrace-planner-ext --no-default-features
    sanitize
}
suite_python() { build && venv && python -m pytest -q tests/python; }
suite_tpcds() { build && venv && python -m pytest -q tests/tpcds; }
suite_java() { build && need mvn maven && tests/java/run.sh; }
suite_browser() { build && tests/browser/run.sh; }
suite_observability() { build && venv && tests/observability/run.sh; }
suite_container() { build && tests/container/run.sh; }
suite_dax() { tests/dax/run.sh; }

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

run_suite() { # run_suite SUITE: runs it, says how it went, and leaves its status in $results
    local suite=$1 start=$SECONDS status
    echo "== $suite"
    # A subshell with its own `set -e`: `if` would switch it off inside the function.
    set +e
    (set -e; "suite_$suite")
    status=$?
    set -e
    echo "$status" >"$results/$suite"
    if [ "$status" -eq 0 ]; then
        echo "== $suite passed in $((SECONDS - start)) s"
    else
        echo "== $suite FAILED after $((SECONDS - start)) s; again: TERRACE_TEST_DRAW=$TERRACE_TEST_DRAW $again $suite"
    fi
}

# Runs the requested ones of some suites one after the other, and prints what each wrote when it ends: another lane
# prints beside it.
lane() { # lane SUITE...
    local suite
    for suite in "$@"; do
        [[ " ${suites[*]} " == *" $suite "* ]] || continue
        run_suite "$suite" >"$results/$suite.log" 2>&1
        flock "$results" cat "$results/$suite.log"
    done
}

for suite in "${suites[@]}"; do
    declare -F "suite_$suite" >/dev/null || { echo "no suite '$suite'; there are lint rust python tpcds java browser observability container dax" >&2; exit 2; }
done
echo "depth: $TERRACE_TEST_DEPTH; to repeat: TERRACE_TEST_DRAW=$TERRACE_TEST_DRAW $again $*"

# What builds runs by itself; then two lanes, of which only the second installs packages.
for suite in lint rust; do
    [[ " ${suites[*]} " == *" $suite "* ]] && run_suite "$suite"
done
lane python tpcds &
lane java browser observability container dax
wait

failed=()
for suite in "${suites[@]}"; do
    [ "$(cat "$results/$suite" 2>/dev/null)" = 0 ] || failed+=("$suite")
done
[ ${#failed[@]} -gt 0 ] && echo "failed suites: ${failed[*]}"
echo "suites: $((${#suites[@]} - ${#failed[@]})) passed, ${#failed[@]} failed, $((SECONDS / 60)) min $((SECONDS % 60)) s"
[ ${#failed[@]} -eq 0 ]
