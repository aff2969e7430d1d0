#!/usr/bin/env bash
# CPU time per answer of globalrouter (static; steered by ECS over 300,000 prefixes) beside knotd and nsd, each on core 0,
# with dnsperf on core 1, candidates interleaved. Needs dnsperf; knotd and nsd are left out where they are missing.
# usage: bench/dns/run.sh [ROUNDS]
set -eu
rounds=${1:-3}
cd "$(dirname "$0")/../.."
dir=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null; wait 2>/dev/null; rm -rf "$dir"' EXIT
addr=127.53.0.1
go build -o "$dir/globalrouter" ./cmd/globalrouter

{
  printf '$ORIGIN gw.test.\n$TTL 20\n@ IN SOA ns1 h 1 3600 600 86400 20\n@ IN NS ns1\nns1 IN A 192.0.2.53\n'
  for i in $(seq 0 999); do echo "api$i IN A 192.0.2.$((i % 250 + 1))"; done
} >"$dir/zone"
awk 'BEGIN { srand(1); for (i = 0; i < 20000; i++) printf "api%d.gw.test A\n", rand() * 1000 }' >"$dir/queries"
awk 'BEGIN { srand(2); while (n < 300000) { p = int(rand()*222+1) "." int(rand()*256) "." int(rand()*256); if (!(p in s)) { s[p]; n++; print p ".0/24", rand() < .5 ? "eu-west" : "us-east" } } }' >"$dir/geo"
names=$(seq -f '"api%g.gw.test": 0' -s ', ' 0 999)
"$dir/globalrouter" example plan | tr -d '\n' | sed "s/\"names\": {[^}]*}/\"names\": {$names}/" >"$dir/plan"

serve() { # NAME PORT OPTIONS COMMAND…: dnsperf's options for this candidate
  local name=$1 port=$2 options=$3
  shift 3
  GOMAXPROCS=1 taskset -c 0 "$@" >"$dir/$name.log" 2>&1 &
  pids+=($!)
  candidates+=("$name $! $port $options")
}
candidates=()
serve static 5300 "" "$dir/globalrouter" serve --zone "$dir/zone" --listen $addr:5300
serve steered 5301 "-E 8:0001180005020700" "$dir/globalrouter" serve --zone "$dir/zone" --plan "$dir/plan" --geo "$dir/geo" --listen $addr:5301
if command -v knotd >/dev/null; then
  printf 'server:\n  listen: %s@5302\n  udp-workers: 1\n  tcp-workers: 1\n  background-workers: 1\n  rundir: "%s"\ndatabase:\n  storage: "%s"\nzone:\n - domain: gw.test\n   file: "%s"\n   zonefile-sync: -1\n   journal-content: none\n' $addr "$dir" "$dir" "$dir/zone" >"$dir/knot.conf"
  serve knot 5302 "" knotd -c "$dir/knot.conf"
fi
if command -v nsd >/dev/null; then
  printf 'server:\n ip-address: %s@5303\n server-count: 1\n zonesdir: "%s"\n username: ""\n pidfile: ""\n xfrdfile: ""\n zonelistfile: "%s/zones"\n rrl-ratelimit: 0\nremote-control:\n control-enable: no\nzone:\n name: gw.test\n zonefile: "%s"\n' $addr "$dir" "$dir" "$dir/zone" >"$dir/nsd.conf"
  serve nsd 5303 "" nsd -d -c "$dir/nsd.conf"
fi
sleep 3

cpu() { # PID and its descendants, in clock ticks of 10 ms
  local all="$1" next="$1"
  while next=$(for p in $next; do pgrep -P "$p" || true; done); [ -n "$next" ]; do all="$all $next"; done
  for p in $all; do sed 's/.*) //' "/proc/$p/stat" | awk '{ print $12 + $13 }'; done | awk '{ s += $1 } END { print s }'
}
for _ in $(seq "$rounds"); do
  for c in "${candidates[@]}"; do
    read -r name pid port options <<<"$c"
    before=$(cpu "$pid")
    # shellcheck disable=SC2086
    answers=$(taskset -c 1 dnsperf -s $addr -p "$port" -d "$dir/queries" -l 4 -c 8 -q 200 $options 2>/dev/null | awk '/Queries completed/ { print $3 }')
    awk -v n="$name" -v a="$answers" -v t=$(($(cpu "$pid") - before)) 'BEGIN { printf "%-8s %8d answers %6.2f µs CPU each\n", n, a, t * 10000 / a }'
  done
done
