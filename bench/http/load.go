//go:build linux

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// paths is what a load asks for.
type paths int

const (
	spread paths = iota // 1 KB, over all routes
	large               // 100 KB, one route
)

// load is how the candidates of a row are driven.
type load struct {
	paths       paths
	connections int
	streams     int // per connection, over HTTP/2; 0 = HTTP/1.1
	tokens      int // that rotate; 0 = the usual number
	tls, once   bool
}

// drive loads the port for about length and gives the number of answers, how long it took and the latencies it saw.
func (l load) drive(s *stage, port int, length time.Duration) (*driven, error) {
	url := fmt.Sprintf("http://%s:%d/", s.addr, port)
	if l.tls {
		url = "https" + url[len("http"):]
	}
	seconds := strconv.Itoa(int(length.Seconds()))
	if l.streams > 0 {
		return l.h2load(s, url, seconds)
	}
	if !l.tls {
		return l.order(s, port, length)
	}
	return l.wrk(s, url, seconds)
}

// order has the other side itself do it.
func (l load) order(s *stage, port int, length time.Duration) (*driven, error) {
	err := json.NewEncoder(s.far).Encode(order{Port: port, Connections: l.connections, Addr: s.addr, Length: length, Set: set{l.paths, cmp.Or(l.tokens, usualTokens)}})
	if err != nil {
		return nil, err
	}
	var o outcome
	line, err := s.outcomes.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("the other side has ended: %w", err)
	}
	if err := json.Unmarshal(line, &o); err != nil {
		return nil, err
	}
	return &driven{answers: o.Answers, took: o.Took, p50: o.P50, p99: o.P99, failed: o.Failed > 0}, nil
}

// scattered is all routes in a random order, the same in every run.
func scattered() []int { return rand.New(rand.NewPCG(1, 1)).Perm(routeCount) }

// driven is what the load generator says.
type driven struct {
	answers  int
	took     time.Duration
	p50, p99 time.Duration
	failed   bool
}

var (
	wrkTotal   = regexp.MustCompile(`(\d+) requests in ([\d.]+m?s)`)
	wrkLatency = regexp.MustCompile(`(?m)^\s+(50|99)%\s+([\d.]+(?:us|ms|s))`)
	h2Total    = regexp.MustCompile(`finished in ([\d.]+m?s)`)
	h2Requests = regexp.MustCompile(`(\d+) succeeded, (\d+) failed, (\d+) errored`)
	h2Statuses = regexp.MustCompile(`status codes: (\d+) 2xx`)
	h2Latency  = regexp.MustCompile(`time for request:\s+\S+\s+\S+\s+(\S+)`)
)

func (l load) wrk(s *stage, url, seconds string) (*driven, error) {
	script, err := l.script(s)
	if err != nil {
		return nil, err
	}
	out, err := exec.Command("taskset", "-c", "1", "wrk", "-t1", "-c"+strconv.Itoa(l.connections), "-d"+seconds+"s", "--latency", "-s", script, url).CombinedOutput()
	total := wrkTotal.FindSubmatch(out)
	if err != nil || total == nil {
		return nil, fmt.Errorf("wrk: %v\n%s", err, out)
	}
	d := &driven{failed: strings.Contains(string(out), "Non-2xx") || strings.Contains(string(out), "Socket errors") && !l.once}
	d.answers, _ = strconv.Atoi(string(total[1]))
	d.took, _ = time.ParseDuration(string(total[2]))
	for _, m := range wrkLatency.FindAllSubmatch(out, -1) {
		at, _ := time.ParseDuration(string(m[2]))
		if string(m[1]) == "50" {
			d.p50 = at
		} else {
			d.p99 = at
		}
	}
	return d, nil
}

// script is wrk's, with every request made ahead: building them would cost the load more than the candidates.
func (l load) script(s *stage) (string, error) {
	tokens := l.tokens
	if tokens == 0 {
		tokens = usualTokens
	}
	path := `"/v1/s" .. i .. "/items/" .. k`
	if l.paths == large {
		path = `"/large/" .. k`
	}
	closing := ""
	if l.once {
		closing = `Connection = "close",`
	}
	text := fmt.Sprintf(`local tokens, made, n = {}, {}, 0
for line in io.lines(%q) do tokens[#tokens + 1] = line if #tokens == %d then break end end
function init()
  math.randomseed(1)
  for k = 1, %d do
    local i = math.random(0, %d - 1)
    local host = "h0.example.com"
    if i >= %d then host = "h" .. (1 + i %% %d) .. ".example.com" end
    made[k] = wrk.format("GET", %s, {Host = host, %s Authorization = "Bearer " .. tokens[1 + k %% #tokens]})
  end
end
function request() n = n %% #made + 1 return made[n] end
`, s.path("tokens"), tokens, routeCount, routeCount, oneHost, otherHosts, path, closing)
	file := s.path(fmt.Sprintf("load-%d-%d-%v.lua", l.paths, tokens, l.once))
	return file, os.WriteFile(file, []byte(text), 0o600)
}

func (l load) h2load(s *stage, url, seconds string) (*driven, error) {
	token, err := os.ReadFile(s.path("token"))
	if err != nil {
		return nil, err
	}
	uris, err := l.uris(s, url)
	if err != nil {
		return nil, err
	}
	out, err := exec.Command("taskset", "-c", "1", "h2load", "-t1", "-c"+strconv.Itoa(l.connections), "-m"+strconv.Itoa(l.streams), "-D"+seconds,
		"-H", ":authority: h0.example.com", "-H", "authorization: Bearer "+string(token), "-i", uris).CombinedOutput()
	total, requests, good := h2Total.FindSubmatch(out), h2Requests.FindSubmatch(out), h2Statuses.FindSubmatch(out)
	if err != nil || total == nil || requests == nil || good == nil {
		return nil, fmt.Errorf("h2load: %v\n%s", err, out)
	}
	d := &driven{failed: string(requests[2]) != "0" || string(requests[3]) != "0"}
	d.answers, _ = strconv.Atoi(string(good[1]))
	d.took, _ = time.ParseDuration(string(total[1]))
	if m := h2Latency.FindSubmatch(out); m != nil {
		d.p50, _ = time.ParseDuration(string(m[1])) // the mean: it knows no quantiles
	}
	return d, nil
}

// uris is h2load's list, over the routes of the host that has most of them.
func (l load) uris(s *stage, url string) (string, error) {
	var b strings.Builder
	for k, i := range rand.New(rand.NewPCG(1, 1)).Perm(oneHost) {
		fmt.Fprintf(&b, "%sv1/s%d/items/%d\n", url, i, k)
	}
	file := filepath.Join(s.dir, "uris")
	return file, os.WriteFile(file, []byte(b.String()), 0o600)
}
