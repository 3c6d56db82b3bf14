#!/usr/bin/env bash
# Makes a certificate for a trial, with an authority of its own; for real use take those of your organisation, or of a public
# authority. Needs openssl. Run it again to renew the certificate: a server that uses it needs no restart.
#
#   deploy/certificates.sh FOLDER NAME...      names and addresses by which clients reach the server
#   deploy/certificates.sh deploy/tls localhost terrace 127.0.0.1
#
# Writes FOLDER/ca.crt (clients trust it: --ca), FOLDER/server.crt and FOLDER/server.key (--tls-cert, --tls-key) and, beside the
# folder, which may be handed to the server, the key of the authority: FOLDER.ca.key.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
command -v openssl >/dev/null || { echo "openssl is missing" >&2; exit 1; }
folder=${1%/}; shift
umask 077
mkdir -p "$folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

names=
for name in "$@"; do
    case $name in
        *:* | [0-9]*.[0-9]*.[0-9]*.[0-9]*) names="$names,IP:$name" ;;
        *) names="$names,DNS:$name" ;;
    esac
done
make() { # make ARGUMENT...: runs openssl, and shows what it says where it fails
    openssl "$@" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
}
key=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes)
authority=$folder.ca.key
if ! [ -f "$folder/ca.crt" ] || ! [ -f "$authority" ]; then
    make req -x509 "${key[@]}" -days 3650 -subj "/CN=Terrace trial authority" -keyout "$authority" -out "$work/ca.crt"
    install -m 644 "$work/ca.crt" "$folder/ca.crt"
fi
make req "${key[@]}" -subj "/CN=$1" -keyout "$work/server.key" -out "$work/server.csr"
printf 'subjectAltName=%s\nbasicConstraints=critical,CA:FALSE\n' "${names#,}" >"$work/extensions"
make x509 -req -in "$work/server.csr" -CA "$folder/ca.crt" -CAkey "$authority" -set_serial "0x$(openssl rand -hex 16)" -days 365 \
    -extfile "$work/extensions" -out "$work/server.crt"
# A renewed key keeps its owner and its rights.
if [ -f "$folder/server.key" ]; then
    cat "$work/server.key" >"$folder/server.key"
else
    install -m 600 "$work/server.key" "$folder/server.key"
fi
install -m 644 "$work/server.crt" "$folder/server.crt.new"
mv "$folder/server.crt.new" "$folder/server.crt"
chmod 755 "$folder"
echo "$folder: ca.crt, server.crt, server.key for ${names#,}"
