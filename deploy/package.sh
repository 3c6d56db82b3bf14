#!/usr/bin/env bash
# Splits a built server into the program and its symbols:
#
#   deploy/package.sh target/release/terrace dist      # dist/terrace, dist/terrace.debug
#
# The program runs alone. With terrace.debug beside it, backtraces, perf and debuggers have names.
set -euo pipefail
[ $# -eq 2 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
binary=$1 folder=$2
mkdir -p "$folder"
objcopy --only-keep-debug "$binary" "$folder/terrace.debug"
objcopy --strip-all "$binary" "$folder/terrace"
# The link names a file of the same folder.
(cd "$folder" && objcopy --add-gnu-debuglink=terrace.debug terrace)
