package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// world is a running world as its world.json describes it.
type world struct {
	dir, bin string
	flags    []string // of its start
	client   *http.Client
	roots    *x509.CertPool

	DNS    []string `json:"dns"`
	CA     string   `json:"ca"`
	Host   string   `json:"host"`
	Path   string   `json:"path"`
	Tokens struct {
		Admin    string `json:"admin"`
		Customer string `json:"customer"`
		Limited  string `json:"limited"`
	} `json:"tokens"`
	Regions []struct {
		ID      string         `json:"id"`
		Clients []netip.Prefix `json:"clients"`
		Admin   string         `json:"admin"`
		Cells   []cell         `json:"cells"`
	} `json:"regions"`
}

type cell struct {
	ID      string     `json:"id"`
	Address netip.Addr `json:"address"`
	HTTPS   uint16     `json:"https"`
	HTTP    uint16     `json:"http"`
	Proxies []struct {
		ID      string     `json:"id"`
		Address netip.Addr `json:"address"`
		Admin   string     `json:"admin"`
	} `json:"proxies"`
}

// process is a process of the world; PID 0 is one that is down.
type process struct {
	Role string `json:"role"`
	ID   string `json:"id"`
	PID  int    `json:"pid"`
}

func (p process) name() string { return p.Role + "/" + p.ID }

func up(bin, dir string, flags ...string) (*world, error) {
	w := &world{dir: dir, bin: bin, flags: append([]string{"up", "--detach"}, flags...)}
	if out, code := w.cellgate(w.flags...); code != 0 {
		return nil, fmt.Errorf("cellgate up: exit %d: %s", code, out)
	}
	w.weigh()
	raw, err := os.ReadFile(filepath.Join(dir, "world.json"))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(raw, w); err != nil {
		return nil, err
	}
	pem, err := os.ReadFile(w.CA)
	if err != nil {
		return nil, err
	}
	w.roots = x509.NewCertPool()
	if !w.roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", w.CA)
	}
	w.client = &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: w.roots}, DisableKeepAlives: true,
	}}
	return w, nil
}

// weigh gives the world, which is a session of its own, the scheduling weight of this one: what watches and what is watched
// must starve alike. Where sessions have no weights (sched(7), autogroup) they do anyway.
func (w *world) weigh() {
	raw, err := os.ReadFile("/proc/self/autogroup")
	if err != nil {
		return
	}
	if _, nice, ok := strings.Cut(strings.TrimSpace(string(raw)), " nice "); ok {
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", w.supervisor()), []byte(nice), 0); err != nil {
			fmt.Fprintln(os.Stderr, "soak: the world has another scheduling weight than the soak:", err)
		}
	}
}

// run runs a command to its end, at most two minutes; its output and exit code. 124 = it had to be ended.
func (w *world) run(name string, args ...string) (string, int) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(w.bin, name), args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	exit := (*exec.ExitError)(nil)
	switch {
	case ctx.Err() != nil:
		return out.String(), 124
	case err != nil && !errors.As(err, &exit):
		return err.Error(), 125
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

func (w *world) cellgate(args ...string) (string, int) {
	return w.run("cellgate", append(args, "--dir", w.dir)...)
}

func (w *world) regionctl(args ...string) (string, int) {
	return w.run("regionctl", append(args, "--world", w.dir)...)
}

func (w *world) processes() ([]process, error) {
	raw, err := os.ReadFile(filepath.Join(w.dir, "world.json"))
	if err != nil {
		return nil, err
	}
	var now struct {
		Processes []process `json:"processes"`
	}
	return now.Processes, json.Unmarshal(raw, &now)
}

// supervisor is the process whose end is everybody's.
func (w *world) supervisor() int {
	var now struct {
		Supervisor int `json:"supervisor"`
	}
	raw, err := os.ReadFile(filepath.Join(w.dir, "world.json"))
	if err != nil || json.Unmarshal(raw, &now) != nil || now.Supervisor <= 1 {
		return math.MaxInt32 // nobody
	}
	return now.Supervisor
}

func (w *world) pid(name string) int {
	all, err := w.processes()
	if err != nil {
		return 0
	}
	for _, p := range all {
		if p.name() == name {
			return p.PID
		}
	}
	return 0
}

func (w *world) cells() []cell {
	var all []cell
	for _, r := range w.Regions {
		all = append(all, r.Cells...)
	}
	return all
}

// admin reads a page of a process's admin server.
func (w *world) admin(addr, page string) ([]byte, error) {
	return w.api("https://" + addr + page)
}

func (w *world) api(url string) ([]byte, error) {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+w.Tokens.Admin)
	res, err := w.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, 64<<20))
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, res.Status)
	}
	return raw, err
}

// adminOf is where a process's metrics are; empty for those that have none.
func (w *world) adminOf(p process) string {
	raw, err := os.ReadFile(filepath.Join(w.dir, "boot", p.Role+"-"+strings.ReplaceAll(p.ID, "/", "-")+".json"))
	if err != nil {
		return ""
	}
	var boot map[string]json.RawMessage
	if json.Unmarshal(raw, &boot) != nil {
		return ""
	}
	key, addr := "admin", ""
	if p.Role == "regionctl" {
		key = "api"
	}
	_ = json.Unmarshal(boot[key], &addr) // absent is empty
	return addr
}

// status is what `regionctl status -o json` promises.
type status struct {
	Version uint64 `json:"version"`
	Rollout *struct {
		Version uint64 `json:"version"`
		State   string `json:"state"`
		Why     string `json:"why"`
	} `json:"rollout"`
	Nodes []struct {
		ID     string `json:"id"`
		Served uint64 `json:"served"`
	} `json:"nodes"`
	Cells []struct {
		ID      string `json:"id"`
		State   string `json:"state"`
		Healthy *bool  `json:"healthy"`
	} `json:"cells"`
}

func (w *world) status() (status, error) {
	var s status
	out, code := w.regionctl("status", "-o", "json")
	if code != 0 {
		return s, fmt.Errorf("status: exit %d: %s", code, out)
	}
	return s, json.Unmarshal([]byte(out), &s)
}

// state of a cell; empty = it is not listed.
func (s status) state(id string) string {
	for _, c := range s.Cells {
		if c.ID == id {
			return c.State
		}
	}
	return ""
}

// settled says whether no rollout is under way.
func (s status) settled() bool {
	return s.Rollout == nil || s.Rollout.State == "live" || s.Rollout.State == "rolled_back" || s.Rollout.State == "aborted"
}
