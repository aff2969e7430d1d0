package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Orders that must work whatever has died: denials, and evacuations behind the glass.

// toldIn is how long a process may take to hear of an order while controllers and stores come and go.
const toldIn = 30 * time.Second

// caller is somebody whom the load is not, so that he can be shut out.
type caller struct {
	what         string
	flags        []string // of `regionctl deny`
	host, path   string
	field, value string // of the request's head, his credentials
}

// callers are the world's other ones: a user by subject and by token, and an API key by its hash.
func (w *world) callers(sample string) ([]caller, error) {
	parts := strings.Split(w.Tokens.Limited, ".")
	if len(parts) != 3 {
		return nil, fmt.Errorf("tokens.limited has %d parts", len(parts))
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return nil, err
	}
	var claims struct{ Sub, Jti string }
	if err := json.Unmarshal(payload, &claims); err != nil {
		return nil, err
	}
	key, err := os.ReadFile(filepath.Join(w.dir, "api-key"))
	if err != nil {
		return nil, err
	}
	_, rest, _ := strings.Cut(sample, `api_key_hashes: ["`)
	hash, _, ok := strings.Cut(rest, `"`)
	if !ok || claims.Sub == "" || claims.Jti == "" {
		return nil, fmt.Errorf("no hash of an API key in the sample, or no subject and id in tokens.limited: %q", payload)
	}
	bearer := "Bearer " + w.Tokens.Limited
	return []caller{
		{"the user " + claims.Sub, []string{"--user", claims.Sub}, w.Host, w.Path, "Authorization", bearer},
		{"the token " + claims.Jti, []string{"--token", claims.Jti}, w.Host, w.Path, "Authorization", bearer},
		{"the key " + hash[:15], []string{"--key", hash}, "acme.gw.test", "/v1/reports/3", "X-API-Key", strings.TrimSpace(string(key))},
	}, nil
}

// gate is one proxy as callers meet it.
type gate struct {
	name, region string
	at           netip.AddrPort
	refused      bool // it has refused the caller who is denied
}

func (w *world) gates() []*gate {
	var all []*gate
	for _, r := range w.Regions {
		for _, c := range r.Cells {
			for _, p := range c.Proxies {
				all = append(all, &gate{name: "proxy/" + p.ID, region: r.ID, at: netip.AddrPortFrom(p.Address, c.HTTP)})
			}
		}
	}
	return all
}

// admits asks the proxy as the caller; ok is false when it gave no answer.
func (g *gate) admits(ctx context.Context, client *http.Client, c caller) (in, ok bool) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+g.at.String()+c.path, nil)
	if err != nil {
		return false, false
	}
	req.Host = c.host
	req.Header.Set(c.field, c.value)
	res, err := client.Do(req)
	if err != nil {
		return false, false
	}
	res.Body.Close()
	return res.Header.Get("X-Cellgate-Reason") != "denied", true
}

// deny shuts a caller out of a region, or of all (""), holds every proxy to it, and lets the caller in again.
func (h *chaos) deny(ctx context.Context, c caller, region string, length time.Duration) {
	place, flags := "everywhere", c.flags
	if region != "" {
		place, flags = "in "+region, append(flags[:len(flags):len(flags)], "--region", region)
	}
	h.l.inject("deny", "%s %s for %v", c.what, place, length)
	if !h.obtain("deny", append([]string{"add"}, flags...)) {
		return
	}
	gates := h.w.gates()
	h.holdTo(ctx, c, gates, region, length)
	if !h.obtain("deny", append([]string{"remove"}, flags...)) {
		return
	}
	h.letIn(c, gates)
}

// obtain gives an order again until it is taken.
func (h *chaos) obtain(verb string, args []string) bool {
	args = append(append([]string{verb}, args...), "--reason", "soak")
	out, code := "", 1
	for end := time.Now().Add(converge); time.Now().Before(end); time.Sleep(time.Second) {
		if out, code = h.w.regionctl(args...); code == 0 {
			h.l.note("%s", firstLine(out))
			return true
		}
	}
	h.l.fail("%s: exit %d for %v: %s", strings.Join(args, " "), code, converge, firstLine(out))
	return false
}

// holdTo: in time every proxy of the region refuses the caller, none admits him after it has refused him, not even one that
// was started again, and the other regions' never refuse him.
func (h *chaos) holdTo(ctx context.Context, c caller, gates []*gate, region string, length time.Duration) {
	began := time.Now()
	for due := began.Add(toldIn); ctx.Err() == nil && (time.Since(began) < length || time.Now().Before(due) && !h.allRefuse(gates, region)); time.Sleep(300 * time.Millisecond) {
		for _, g := range gates {
			in, ok := g.admits(ctx, h.c.plain, c)
			h.c.asked.Add(1)
			switch {
			case !ok || h.c.isAway(g.name):
				due = time.Now().Add(toldIn)
			case region != "" && g.region != region:
				if !in {
					h.l.fail("%s refuses %s, who is denied in %s alone", g.name, c.what, region)
				}
			case in && g.refused && !h.c.isNew(g.name):
				h.l.fail("%s admits %s, whom it had refused", g.name, c.what)
			default:
				g.refused = !in
			}
		}
	}
	if ctx.Err() == nil && !h.allRefuse(gates, region) {
		h.l.fail("%s is denied for %v, and a proxy that runs admits him: %s", c.what, time.Since(began).Round(time.Second), names(gates, region))
	}
}

func (h *chaos) allRefuse(gates []*gate, region string) bool {
	for _, g := range gates {
		if !g.refused && (region == "" || g.region == region) {
			return false
		}
	}
	return true
}

func names(gates []*gate, region string) string {
	var list []string
	for _, g := range gates {
		if !g.refused && (region == "" || g.region == region) {
			list = append(list, g.name)
		}
	}
	return strings.Join(list, " ")
}

// letIn: in time every proxy admits the caller again.
func (h *chaos) letIn(c caller, gates []*gate) {
	last := ""
	for due := time.Now().Add(toldIn); time.Now().Before(due); time.Sleep(300 * time.Millisecond) {
		last = ""
		for _, g := range gates {
			in, ok := g.admits(context.Background(), h.c.plain, c)
			if !ok || h.c.isAway(g.name) {
				due = time.Now().Add(toldIn)
			}
			if !in || !ok {
				last = g.name
			}
		}
		if last == "" {
			return
		}
	}
	h.l.fail("%s is no longer denied, and %s still refuses him after %v", c.what, last, toldIn)
}

// breakGlass takes the global store away, and with it every leader; a cell is evacuated and restored all the same, and the
// store knows when it returns.
func (h *chaos) breakGlass(ctx context.Context, x cell, length time.Duration) {
	h.l.inject("break glass", "%s is evacuated without the global store", x.ID)
	h.order("stop", "etcd/global/*")
	taken := h.obtain("evacuate", []string{x.ID, "--over", "0s", "--expires", "10m", "--break-glass"})
	if taken {
		h.empties(ctx, x)
		sleep(ctx, length)
	}
	back := h.restore(x.ID)
	h.order("start", "etcd/global/*")
	if !taken || !back {
		h.l.fail("without the global store %s: evacuated %v, restored %v", x.ID, taken, back)
	}
	for end := time.Now().Add(converge); time.Now().Before(end); time.Sleep(time.Second) {
		if s, err := h.w.status(); err == nil && s.state(x.ID) == "active" {
			h.l.note("%s is active again", x.ID)
			return
		}
	}
	h.l.fail("%s is not active %v after its restoration and the store's return", x.ID, converge)
}

// empties: in time no answer of any router names the cell.
func (h *chaos) empties(ctx context.Context, x cell) {
	named := ""
	for due := time.Now().Add(toldIn); ctx.Err() == nil && time.Now().Before(due); time.Sleep(300 * time.Millisecond) {
		if named = h.c.whoNames(ctx, x.Address); named == "" {
			return
		}
	}
	if ctx.Err() == nil {
		h.l.fail("%s was evacuated %v ago, and %s still names it", x.ID, toldIn, named)
	}
}

func sleep(ctx context.Context, length time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(length):
	}
}
