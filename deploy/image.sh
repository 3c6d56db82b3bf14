#!/usr/bin/env bash
# Builds the container image of a packed server without a container engine: the last stage of deploy/Dockerfile, by buildah.
#
#   deploy/image.sh [--base BASE] DIST NAME            # DIST: the folder that deploy/package.sh wrote
#   deploy/image.sh dist localhost/terrace:1.2.3
#
# --base BASE   what the image stands on, in place of the one that the Dockerfile names: another image, or a folder with a root
#               file system, as debootstrap makes it (nothing is fetched then)
#
# The image is kept in buildah's storage (CONTAINERS_STORAGE_CONF names another one). Needs buildah, and root.
set -euo pipefail
help() { sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; }
fail() { echo "image.sh: $*" >&2; exit 1; }
base=
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) help; exit ;;
        --base) [ $# -ge 2 ] || { help >&2; exit 2; }; base=$2; shift 2 ;;
        -*) echo "image.sh: unknown option $1" >&2; help >&2; exit 2 ;;
        *) break ;;
    esac
done
[ $# -eq 2 ] || { help >&2; exit 2; }
dist=$1 name=$2
here=$(cd "$(dirname "$0")" && pwd)
[ -x "$dist/terrace" ] || fail "there is no program $dist/terrace; deploy/package.sh makes it"
command -v buildah >/dev/null || fail "buildah is missing: apt-get install buildah"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Nobody signs these images, and machines without a policy of their own refuse all.
printf '{"default":[{"type":"insecureAcceptAnything"}]}' >"$work/policy.json"
policy=(--signature-policy "$work/policy.json")

if [ -d "$base" ]; then
    container=$(buildah from scratch)
    buildah add -q "$container" "$base" / >/dev/null
    buildah commit -q "${policy[@]}" "$container" localhost/terrace-base >/dev/null
    buildah rm "$container" >/dev/null
    base=localhost/terrace-base
fi

mkdir -p "$work/context/dist"
cp "$dist/terrace" "$work/context/dist/"
{
    echo 'FROM scratch AS builder'
    echo 'COPY dist /dist'
    sed -n '/ AS final$/,$p' "$here/Dockerfile"
} >"$work/context/Dockerfile"
[ -z "$base" ] || sed -i "s#^FROM [^ ]* AS final\$#FROM $base AS final#" "$work/context/Dockerfile"
grep -q "^FROM ${base:-docker.io/.*} AS final\$" "$work/context/Dockerfile" || fail "no final stage in $here/Dockerfile"
buildah bud -q --isolation chroot --format docker "${policy[@]}" --target final -t "$name" "$work/context" >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; fail "buildah could not build the image"; }
echo "$name"
