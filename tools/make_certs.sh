#!/usr/bin/env bash
# Makes the certificates of a job: tools/make_certs.sh DIR HOST...
#
# HOST is a name or an address at which others reach a server (or a worker with --serve-parameters). DIR gets a CA
# (ca.pem, ca.key) and, signed by it, server.pem, worker.pem and operator.pem, each with its .key. With a CA in DIR
# that one is used again: so a host is added, and certificates are renewed. They are valid for DAYS days (365).
#
# tools/make_certs.sh --revoke FILE.pem DIR takes a certificate of DIR's CA back: DIR/crl.pem lists all that were, for
# recon-server --tls-crl. The list is valid for DAYS days.
set -euo pipefail
usage() {
  sed -n '2,/^set/{s/^# \{0,1\}//p}' "$0"
  exit "$1"
}
[ "${1:-}" = --help ] || [ "${1:-}" = -h ] && usage 0
revoked=
if [ "${1:-}" = --revoke ]; then
  if [ $# -ne 3 ] || [ ! -e "$2" ] || [ ! -e "$3/ca.key" ]; then
    echo "make_certs.sh: --revoke expects a certificate and the DIR of its CA" >&2
    usage 2 >&2
  fi
  revoked=$2
  shift 2
elif [ $# -lt 2 ]; then
  echo "make_certs.sh: expected DIR and one HOST at least" >&2
  usage 2 >&2
fi
directory=$1
shift
days=${DAYS:-365}
umask 077  # Keys are for their owner.
mkdir -p "$directory"
work=$(mktemp -d "$directory/new.XXXXXX")
trap 'rm -rf "$work"' EXIT

names=
for host in "$@"; do
  case $host in
    *[!0-9A-Za-z.:-]*) echo "make_certs.sh: $host is neither a host's name nor an address" >&2; exit 2 ;;
    *:* | *[!0-9.]*) kind=DNS; [[ $host == *:* ]] && kind=IP ;;
    *) kind=IP ;;
  esac
  names=$names${names:+,}$kind:$host
done

# Says what openssl said, if it failed.
quietly() {
  openssl "$@" >"$work/said" 2>&1 || { cat "$work/said" >&2; exit 1; }
}

if [ -n "$revoked" ]; then
  touch "$directory/revoked.txt"
  cat >"$work/ca.conf" <<CONFIG
[ca]
default_ca = job
[job]
database = $directory/revoked.txt
certificate = $directory/ca.pem
private_key = $directory/ca.key
default_md = sha256
CONFIG
  # One that was revoked before only renews the list.
  openssl ca -config "$work/ca.conf" -revoke "$revoked" >"$work/said" 2>&1 || grep -q "Already revoked" "$work/said" ||
    { cat "$work/said" >&2; exit 1; }
  quietly ca -config "$work/ca.conf" -gencrl -crldays "$days" -out "$work/crl.pem"
  mv "$work/crl.pem" "$directory"
  echo "$directory/crl.pem: $(grep -c ^R "$directory/revoked.txt") revoked certificates, to be replaced within $days days"
  exit 0
fi

new_key() { quietly genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }

if [ ! -e "$directory/ca.key" ]; then
  new_key "$work/ca.key"
  quietly req -x509 -new -key "$work/ca.key" -out "$work/ca.pem" -days 3650 -subj "/CN=recon CA of $(uname -n | cut -c 1-40)" \
    -addext "keyUsage=critical,keyCertSign,cRLSign"
  mv "$work/ca.pem" "$work/ca.key" "$directory"
fi

# certificate NAME USAGES: NAME.pem and NAME.key, for the hosts if others connect to it.
certificate() {
  new_key "$work/$1.key"
  quietly req -new -key "$work/$1.key" -out "$work/$1.csr" -subj "/OU=$1/CN=recon $1"
  {
    echo "basicConstraints=CA:FALSE"
    echo "extendedKeyUsage=$2"
    case $2 in *serverAuth*) echo "subjectAltName=$names" ;; esac
  } >"$work/$1.extensions"
  quietly x509 -req -in "$work/$1.csr" -CA "$directory/ca.pem" -CAkey "$directory/ca.key" -days "$days" \
    -set_serial "0x$(openssl rand -hex 16)" -extfile "$work/$1.extensions" -out "$work/$1.pem"
}
certificate server serverAuth,clientAuth  # One that joins is the head's client.
certificate worker serverAuth,clientAuth  # It may hand out its parameters.
certificate operator clientAuth
for name in server worker operator; do mv "$work/$name.pem" "$work/$name.key" "$directory"; done
echo "$directory: ca.pem, and server, worker and operator (.pem and .key) for $names, valid for $days days"
