#!/usr/bin/env bash
# CPU time per request of the proxy process alone, beside nginx and HAProxy: plain HTTP/1.1, 64 keep-alive connections,
# 1 KB answers. Each candidate runs alone on core 0; load (wrk) and backend (nginx) share core 1. Candidates are interleaved;
# a round in which a candidate was less than 0.9 busy or gave an error is void. Ours routes at random over 100,000 routes,
# writes an access log and keeps metrics and deadlines; the peers run bare. Needs nginx, haproxy, wrk and curl.
# usage: bench/http/run.sh [ROUNDS]
set -eu
rounds=${1:-6}
cd "$(dirname "$0")/../.."
for tool in nginx haproxy wrk curl; do command -v $tool >/dev/null || { echo "$tool is missing"; exit 1; }; done
dir=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null; wait 2>/dev/null; rm -rf "$dir"' EXIT
addr=127.54.0.1
go build -o "$dir/proxy" ./cmd/proxy

nginx_conf() { # FILE SERVER…
  local file=$1
  shift
  printf 'worker_processes 1; daemon off; pid %s.pid; error_log %s.err;\nevents { worker_connections 4096; }\nhttp { access_log off; keepalive_requests 1000000000; client_body_temp_path %s.b; proxy_temp_path %s.p; fastcgi_temp_path %s.f; uwsgi_temp_path %s.u; scgi_temp_path %s.s;\n%s\n}\n' \
    "$file" "$file" "$file" "$file" "$file" "$file" "$file" "$*" >"$file"
}
body=$(head -c 1000 /dev/zero | tr '\0' x)
nginx_conf "$dir/backend" "server { listen $addr:8001; location / { default_type text/plain; return 200 \"$body\"; } }"
nginx_conf "$dir/nginx" "upstream be { server $addr:8001; keepalive 128; keepalive_requests 1000000000; } server { listen $addr:8002; location / { proxy_pass http://be; proxy_http_version 1.1; proxy_set_header Connection \"\"; } }"
printf 'global\n nbthread 1\n maxconn 4096\ndefaults\n mode http\n timeout connect 3s\n timeout client 60s\n timeout server 60s\n http-reuse always\nfrontend f\n bind %s:8003\n default_backend b\nbackend b\n server s %s:8001\n' $addr $addr >"$dir/haproxy"
awk -v a=$addr 'BEGIN {
  print "version: v1\nroutes:"
  for (i = 0; i < 100000; i++) printf "  - {id: r%d, match: {host: h%d.example.com, path: \"/v1/s%d/items/{id}\", methods: [GET]}, upstream: be}\n", i, i % 1000, i
  printf "upstreams: [{id: be, endpoints: [\"%s:8001\"]}]\n", a }' >"$dir/document"
cat >"$dir/load.lua" <<'LUA'
local n = 0
function request()
  n = (n * 1103515245 + 12345) % 2147483648
  local i = n % 100000
  return wrk.format("GET", "/v1/s" .. i .. "/items/" .. n, {Host = "h" .. (i % 1000) .. ".example.com"})
end
LUA

taskset -c 1 nginx -c "$dir/backend" & pids+=($!)
candidates=()
serve() { # NAME PORT COMMAND…
  local name=$1 port=$2
  shift 2
  "$@" >"$dir/$name.log" 2>&1 &
  pids+=($!)
  candidates+=("$name $! $port")
}
serve nginx 8002 taskset -c 0 nginx -c "$dir/nginx"
serve haproxy 8003 taskset -c 0 haproxy -db -f "$dir/haproxy"
GOMAXPROCS=1 serve cellgate 8004 taskset -c 0 "$dir/proxy" serve --document "$dir/document" --http $addr:8004 --access-log "$dir/access.log"
for c in "${candidates[@]}"; do
  read -r name _ port <<<"$c"
  for _ in $(seq 100); do curl -sf -o /dev/null -H 'Host: h1.example.com' "http://$addr:$port/v1/s1/items/1" && continue 2; sleep .2; done
  echo "$name does not answer"; cat "$dir/$name.log"; exit 1
done

ticks() { cat /proc/"$1"/stat $(for c in $(cat /proc/"$1"/task/"$1"/children); do echo /proc/"$c"/stat; done) | awk '{s += $14 + $15} END {print s}'; }
seconds=4
hz=$(getconf CLK_TCK)
for round in $(seq "$rounds"); do
  for c in "${candidates[@]}"; do
    read -r name pid port <<<"$c"
    before=$(ticks "$pid")
    out=$(taskset -c 1 wrk -t1 -c64 -d${seconds}s -s "$dir/load.lua" "http://$addr:$port")
    after=$(ticks "$pid")
    requests=$(awk '/requests in/ {print $1}' <<<"$out")
    void=""
    grep -qE 'Non-2xx|Socket errors' <<<"$out" && void="void: errors"
    awk -v n="$name" -v r="$round" -v t=$((after - before)) -v hz="$hz" -v q="$requests" -v s=$seconds -v v="$void" 'BEGIN {
      busy = t / hz / s; if (v == "" && busy < 0.9) v = "void: idle"
      printf "%-9s round %d  %6.2f µs  %7d req/s  busy %.2f  %s\n", n, r, t / hz * 1e6 / q, q / s, busy, v }'
    : >"$dir/access.log"
  done
done | tee "$dir/rounds"
awk '!/void/ {print $1, $4}' "$dir/rounds" | sort | awk '
  {v[$1] = v[$1] " " $2}
  END {for (n in v) {k = split(v[n], a, " "); for (i = 1; i <= k; i++) for (j = i + 1; j <= k; j++) if (a[j] + 0 < a[i] + 0) {t = a[i]; a[i] = a[j]; a[j] = t}
    m[n] = a[int((k + 1) / 2)]; printf "%-9s median %6.2f µs over %d rounds\n", n, m[n], k}
    for (n in m) if (n != "cellgate" && m["cellgate"]) printf "cellgate ÷ %-8s %.2f\n", n, m["cellgate"] / m[n]}'
