#!/usr/bin/env bash
# Makes what a release has from a built server: archives and a container image, with their SHA-256 checksums.
#
#   cargo build --release && deploy/release.sh target/release/terrace dist
#   deploy/release.sh [--no-image] [--base BASE] BINARY FOLDER
#
# Writes into FOLDER, with NAME = terrace-VERSION-linux-ARCHITECTURE:
#   NAME.tar.gz           the program, its man pages and completions, documents, dashboards, and the files of deploy/
#   NAME-symbols.tar.gz   terrace.debug, for backtraces, perf and debuggers
#   NAME-image.tar        for docker load -i, podman load -i; the image is terrace:VERSION
#   SHA256SUMS            of all three: sha256sum -c SHA256SUMS
#
# --no-image    no image, and buildah is not needed
# --base BASE   what the image stands on: see deploy/image.sh --help
#
# Archives of the same binary are equal byte for byte: their files have the time SOURCE_DATE_EPOCH, or that of the commit.
# Files of these names are replaced. Needs objcopy; for the image buildah, and root.
set -euo pipefail
help() { sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; }
fail() { echo "release.sh: $*" >&2; exit 1; }
image=yes base=()
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) help; exit ;;
        --no-image) image=no; shift ;;
        --base) [ $# -ge 2 ] || { help >&2; exit 2; }; base=(--base "$2"); shift 2 ;;
        -*) echo "release.sh: unknown option $1" >&2; help >&2; exit 2 ;;
        *) break ;;
    esac
done
[ $# -eq 2 ] || { help >&2; exit 2; }
binary=$1 folder=$2
top=$(cd "$(dirname "$0")/.." && pwd)
[ -x "$binary" ] || fail "there is no program $binary; cargo build --release makes target/release/terrace"
command -v objcopy >/dev/null || fail "objcopy is missing: apt-get install binutils"
[ "$image" = no ] || command -v buildah >/dev/null || fail "buildah is missing: apt-get install buildah, or say --no-image"
said=$("$binary" --version) || fail "$binary --version failed"
[[ $said =~ ^terrace\ ([0-9]+\.[0-9]+\.[0-9]+)\ \([0-9a-f]{12}\)$ ]] ||
    fail "$binary --version says '$said': a release needs a version and the commit. Build it in a clone of git, or with TERRACE_COMMIT"
version=${BASH_REMATCH[1]}
name=terrace-$version-linux-$(uname -m)
epoch=${SOURCE_DATE_EPOCH:-$(git -C "$top" log -1 --format=%ct 2>/dev/null || echo 0)}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
archive() { # archive FILE NAME...: packs names of $work, the same bytes each time
    local file=$1; shift
    tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mode=go-w --mtime="@$epoch" -cf - "$@" | gzip -n >"$folder/$file"
}
mkdir -p "$folder"
"$top/deploy/package.sh" "$binary" "$work/packed"

mkdir -p "$work/$name/completions"
install -m 755 "$work/packed/terrace" "$work/$name/terrace"
"$binary" man "$work/$name/man/man1"
for shell in bash zsh fish; do
    "$binary" completions "$shell" >"$work/$name/completions/terrace.$shell"
done
for part in README.md CHANGELOG.md SECURITY.md LICENSE docs dashboards; do
    cp -R "$top/$part" "$work/$name/"
done
mkdir "$work/$name/deploy"
for part in certificates.sh kubernetes.yml terrace.service terrace.service.d terrace.toml; do
    cp -R "$top/deploy/$part" "$work/$name/deploy/"
done
archive "$name.tar.gz" "$name"
install -D -m 644 "$work/packed/terrace.debug" "$work/$name-symbols/terrace.debug"
archive "$name-symbols.tar.gz" "$name-symbols"
made=("$name.tar.gz" "$name-symbols.tar.gz")

if [ "$image" = yes ]; then
    if [ -z "${CONTAINERS_STORAGE_CONF:-}" ]; then # nothing of the machine's images is seen or touched
        export CONTAINERS_STORAGE_CONF="$work/storage.conf"
        printf '[storage]\ndriver = "vfs"\nrunroot = "%s/run"\ngraphroot = "%s/graph"\n' "$work" "$work" >"$CONTAINERS_STORAGE_CONF"
    fi
    "$top/deploy/image.sh" "${base[@]}" "$work/packed" "localhost/terrace:$version" >/dev/null
    # An archive is never written over by buildah.
    rm -f "$folder/$name-image.tar"
    printf '{"default":[{"type":"insecureAcceptAnything"}]}' >"$work/policy.json"
    buildah push -q --signature-policy "$work/policy.json" "localhost/terrace:$version" \
        "docker-archive:$folder/$name-image.tar:terrace:$version"
    made+=("$name-image.tar")
fi
(cd "$folder" && sha256sum "${made[@]}" >SHA256SUMS)
printf '%s\n' "${made[@]/#/$folder/}" "$folder/SHA256SUMS"
