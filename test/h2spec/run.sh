#!/usr/bin/env bash
# Runs h2spec (https://github.com/summerwind/h2spec) against a proxy, over TLS and with prior knowledge. Needs openssl and curl;
# h2spec itself is built into a temporary directory unless H2SPEC names one.
# usage: [ENGINE=loop] test/h2spec/run.sh [H2SPEC-ARGUMENT…], e.g. http2/6.5 to run one section
set -eu
cd "$(dirname "$0")/../.."
addr=${ADDR:-127.22.9.1}
dir=$(mktemp -d)
pid=
trap 'test -z "$pid" || kill "$pid" 2>/dev/null; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
spec=${H2SPEC:-}
if [ -z "$spec" ]; then
  GOBIN="$dir" GOFLAGS=-mod=mod go install github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible
  spec=$dir/h2spec
fi
go build -o "$dir/proxy" ./cmd/proxy
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=h2spec -addext "subjectAltName=IP:$addr" \
  -keyout "$dir/key" -out "$dir/cert" 2>/dev/null
# The proxy's own admin server is the upstream: its answers are small documents.
cat >"$dir/document" <<DOC
version: v1
routes:
  - {id: all, match: {path_prefix: /, allow_catch_all: true}, upstream: admin, timeout: 10s}
upstreams:
  - {id: admin, endpoints: ["$addr:8082"]}
DOC
"$dir/proxy" serve --document "$dir/document" --http "$addr:8080" --https "$addr:8443" --cert "$dir/cert" --key "$dir/key" --admin "$addr:8082" ${ENGINE:+--engine "$ENGINE"} >"$dir/log" 2>&1 &
pid=$!
for _ in $(seq 50); do curl -sf -o /dev/null "http://$addr:8080/.well-known/cellgate/ready" && break; sleep .1; done
curl -sf -o /dev/null "http://$addr:8080/.well-known/cellgate/ready" || { cat "$dir/log"; exit 1; }
code=0
echo "== prior knowledge"
"$spec" -h "$addr" -p 8080 --timeout 3 "$@" || code=1
echo "== TLS"
"$spec" -h "$addr" -p 8443 -t -k --timeout 3 "$@" || code=1
exit $code
