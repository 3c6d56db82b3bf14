#!/usr/bin/env bash
# Figure R3: runs the fuzz harnesses with their deep numbers of inputs, each in a process of its own, and compares what it holds.
#
#   tests/fuzz.sh                     all harnesses, for hours
#   tests/fuzz.sh terrace-ipc         those of one crate
#   TERRACE_TEST_FUZZ_INPUTS=50000 tests/fuzz.sh        this many inputs for each
#
# An input that ends the process is in $TMPDIR/terrace-fuzz-<name>-latest, one without an end in ..-hang: copy it into the
# folder `corpus` of its harness (docs/design/fuzzing.md).
set -euo pipefail
cd "$(dirname "$0")/.."
export TERRACE_TEST_DEPTH=deep TERRACE_TEST_FUZZ_ALONE=1

harnesses=(
    "terrace-ipc fuzz_tests::files" "terrace-ipc fuzz_tests::messages"
    "terrace-flight tests::fuzz::messages" "terrace-flight tests::fuzz::calls"
    "terrace-flight tests::fuzz::streams"
    "terrace-access fuzz_tests::tokens_and_keys"
    "terrace-storage tier::codec::fuzz_tests::chunk_files" "terrace-storage tier::codec::fuzz_tests::catalog_records"
    "terrace-sql fuzz_tests::statements"
    "terrace-planner-ext engine::tests::fuzz::plans"
    "terrace-planner-ext engine::tests::fuzz::csv_files" "terrace-planner-ext engine::tests::fuzz::json_files"
    "terrace-planner-ext engine::tests::fuzz::parquet_files"
    "terrace-planner-ext engine::tests::fuzz::arrow_files_of_others" "terrace-planner-ext engine::tests::fuzz::rows_of_clients"
    "terrace-server config::fuzz_tests::files" "terrace-server config::fuzz_tests::values"
    "terrace-server http::fuzz_tests::requests"
)
failed=()
for harness in "${harnesses[@]}"; do
    read -r crate test <<<"$harness"
    [ $# -eq 0 ] || [[ " $* " == *" $crate "* ]] || continue
    # A name that is no test any more would pass.
    output=$(cargo test --release --locked -p "$crate" --lib -- --exact "$test" 2>&1 | tee /dev/stderr) || failed+=("$test")
    grep -q "1 passed" <<<"$output" || failed+=("$crate $test")
done
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
