#!/usr/bin/env bash
# Makes a certificate for a trial, with an authority of its own; for real use take those of your organisation, or of a public
# authority. Needs openssl.
#
#   deploy/certificates.sh FOLDER NAME...      names and addresses by which clients reach the server
#   deploy/certificates.sh deploy/tls localhost terrace 127.0.0.1
#
# Writes ca.crt (clients trust it: --ca), server.crt and server.key (--tls-cert, --tls-key) and, so that more can be signed, ca.key.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
folder=$1; shift
mkdir -p "$folder"
cd "$folder"
umask 077

names=
for name in "$@"; do
    case $name in
        *:* | [0-9]*.[0-9]*.[0-9]*.[0-9]*) names="$names,IP:$name" ;;
        *) names="$names,DNS:$name" ;;
    esac
done
key=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes)
[ -f ca.crt ] || openssl req -x509 "${key[@]}" -days 3650 -subj "/CN=Terrace trial authority" -keyout ca.key -out ca.crt 2>/dev/null
openssl req "${key[@]}" -subj "/CN=$1" -keyout server.key -out server.csr 2>/dev/null
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -out server.crt.new \
    -extfile <(printf 'subjectAltName=%s\nbasicConstraints=critical,CA:FALSE\n' "${names#,}") 2>/dev/null
mv server.crt.new server.crt
rm -f server.csr ca.srl
chmod 644 ca.crt server.crt
echo "$PWD: ca.crt, server.crt, server.key for ${names#,}"
