#!/usr/bin/env bash
# Asks a proxy over HTTP/3 with a client of other hands: gtlsclient of ngtcp2 (Debian: ngtcp2-client), on a good path, one that
# loses packets, and one whose address and keys change. Needs openssl and curl.
# usage: test/h3smoke/run.sh
set -eu
cd "$(dirname "$0")/../.."
addr=${ADDR:-127.46.9.1}
dir=$(mktemp -d)
pid=
trap 'test -z "$pid" || kill "$pid" 2>/dev/null; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
go build -o "$dir/proxy" ./cmd/proxy
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=edge.example -addext "subjectAltName=DNS:edge.example" \
  -keyout "$dir/key" -out "$dir/cert" 2>/dev/null
# The proxy's own admin server is the upstream: its answers are documents that don't change meanwhile.
cat >"$dir/document" <<DOC
version: v1
routes:
  - {id: all, match: {host: edge.example, path_prefix: /, allow_catch_all: true}, upstream: admin, timeout: 10s}
upstreams:
  - {id: admin, endpoints: ["$addr:8082"]}
DOC
"$dir/proxy" serve --document "$dir/document" --https "$addr:8443" --cert "$dir/cert" --key "$dir/key" --h3 --admin "$addr:8082" --access-log "$dir/access" >"$dir/log" 2>&1 &
pid=$!
get() { curl -sf --cacert "$dir/cert" --resolve "edge.example:8443:$addr" "https://edge.example:8443$1"; }
for _ in $(seq 50); do get /.well-known/cellgate/ready >"$dir/ready" && break; sleep .1; done
grep -q . "$dir/ready" || { cat "$dir/log"; exit 1; }
get /config >"$dir/want"
head -c 300000 /dev/zero >"$dir/body"
h3() { # name, path, gtlsclient's arguments
  local name=$1 path=$2
  shift 2
  timeout 30 gtlsclient --exit-on-all-streams-close --quiet --download "$dir" "$@" "$addr" 8443 "https://edge.example:8443$path"
  echo "ok: $name"
}
asked=0
for how in "" "--tx-loss=0.1 --rx-loss=0.1" "--change-local-addr=5ms --nat-rebinding --key-update=5ms"; do
  rm -f "$dir/config"
  h3 "GET $how" /config $how
  cmp "$dir/want" "$dir/config"
  h3 "POST $how" /upload --http-method=POST --data="$dir/body" $how
  asked=$((asked + 2))
done
for _ in $(seq 50); do test "$(grep -c '"proto":"HTTP/3.0"' "$dir/access")" = "$asked" && exit 0; sleep .1; done
echo "not $asked lines of HTTP/3 in the access log:" && cat "$dir/access"
exit 1
