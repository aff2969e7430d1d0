package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The ports on the stage's address.
const (
	backendPort = 8001 + iota
	nginxPlain
	nginxTLS
	nginxH2
	haproxyPlain
	haproxyTLS
	haproxyJWT
	ownPlain
	ownTLS
	ownBare
	ownSteady
	ownSwapping
)

// stage is the processes of the measurement: backend, peers, and ours with and without policies.
type stage struct {
	dir, addr, engine string

	mu   sync.Mutex
	cmds map[string]*exec.Cmd
}

func (s *stage) path(name string) string { return filepath.Join(s.dir, name) }

func (s *stage) at(port int) string { return s.addr + ":" + strconv.Itoa(port) }

// start builds, writes all files, and waits until every candidate answers.
func (s *stage) start() error {
	if out, err := exec.Command("go", "build", "-o", s.path("proxy"), "./cmd/proxy").CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, out)
	}
	if err := s.files(); err != nil {
		return err
	}
	own := func(name string, flags ...string) []string {
		args := append([]string{"-c", "0", s.path("proxy"), "serve", "--document", s.path(name + ".yaml")}, flags...)
		if s.engine != "" {
			args = append(args, "--engine", s.engine)
		}
		return args
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	swapping := func(name string, port int, more ...string) []string {
		return append([]string{"-c", "0", self, "node", "--document", s.path("full.yaml"), "--http", s.at(port), "--dir", s.path(name)}, more...)
	}
	for name, args := range map[string][]string{
		"backend": {"-c", "1", "nginx", "-c", s.path("backend.conf")},
		"nginx":   {"-c", "0", "nginx", "-c", s.path("nginx.conf")},
		"haproxy": {"-c", "0", "haproxy", "-db", "-f", s.path("haproxy.conf")},
		"cellgate": own("full", "--http", s.at(ownPlain), "--https", s.at(ownTLS), "--cert", s.path("cert.pem"), "--key", s.path("key.pem"),
			"--access-log", s.path("access.log")),
		"bare":     own("bare", "--http", s.at(ownBare)),
		"steady":   swapping("steady", ownSteady),
		"swapping": swapping("swapping", ownSwapping, "--swap"),
	} {
		if err := s.spawn(name, args); err != nil {
			return err
		}
	}
	return s.ready()
}

func (s *stage) spawn(name string, args []string) error {
	out, err := os.Create(s.path(name + ".out"))
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command("taskset", args...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmds == nil {
		s.cmds = map[string]*exec.Cmd{}
	}
	s.cmds[name] = cmd
	return nil
}

// ready waits until every port answers a request of the load.
func (s *stage) ready() error {
	token, err := os.ReadFile(s.path("token"))
	if err != nil {
		return err
	}
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // our own certificate of a minute ago
	for port := backendPort; port <= ownSwapping; port++ {
		scheme := "http"
		if port == nginxTLS || port == nginxH2 || port == haproxyTLS || port == ownTLS {
			scheme = "https"
		}
		last := errors.New("not asked")
		for end := time.Now().Add(2 * time.Minute); last != nil && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			last = ask(client, scheme+"://"+s.at(port)+"/v1/s1/items/1", string(token))
		}
		if last != nil {
			return fmt.Errorf("port %d does not answer: %w\n%s", port, last, s.outputs())
		}
	}
	return nil
}

func ask(client *http.Client, url, token string) error {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Host = "h0.example.com"
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return errors.New(res.Status)
	}
	return nil
}

// outputs is what the processes have printed.
func (s *stage) outputs() string {
	var b strings.Builder
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.cmds {
		if raw, err := os.ReadFile(s.path(name + ".out")); err == nil && len(raw) > 0 {
			fmt.Fprintf(&b, "%s: %s\n", name, raw)
		}
	}
	return b.String()
}

func (s *stage) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, cmd := range s.cmds {
		_ = cmd.Process.Signal(syscall.SIGTERM)
	}
	for _, cmd := range s.cmds {
		kill := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		kill.Stop()
	}
	s.cmds = nil
}

// sample measures one candidate once.
func (s *stage) sample(r row, c candidate, o options) (sample, error) {
	s.mu.Lock()
	pid := s.cmds[c.process].Process.Pid
	s.mu.Unlock()
	before, err := spent(pid, r.user)
	if err != nil {
		return sample{}, err
	}
	d, err := r.load.drive(s, c.port, o.length)
	if err != nil {
		return sample{}, fmt.Errorf("%w\n%s", err, s.outputs())
	}
	after, err := spent(pid, r.user)
	if err != nil {
		return sample{}, err
	}
	memory, err := resident(pid)
	if err != nil {
		return sample{}, err
	}
	for _, log := range []string{"access.log", "steady/access.log", "swapping/access.log"} {
		if err := os.Truncate(s.path(log), 0); err != nil {
			return sample{}, err
		}
	}
	used := after - before
	one := sample{cost: float64(used.Nanoseconds()) / 1e3 / float64(max(d.answers, 1)), rate: float64(d.answers) / d.took.Seconds(),
		busy: used.Seconds() / d.took.Seconds(), memory: memory, p50: d.p50, p99: d.p99}
	switch {
	case d.failed || d.answers == 0:
		one.void = "void: errors"
	case one.busy < 0.9 && !r.user && !r.unfilled:
		one.void = "void: idle"
	}
	return one, nil
}

// resident is a process's memory in MB.
func resident(pid int) (float64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	pages, err := strconv.ParseFloat(strings.Fields(string(raw))[1], 64)
	return pages * float64(os.Getpagesize()) / 1e6, err
}

// spent is the CPU time of a process and its children: exact from the scheduler, or user time alone from clock ticks.
func spent(pid int, user bool) (time.Duration, error) {
	var sum time.Duration
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil || len(tasks) == 0 {
		return 0, fmt.Errorf("process %d has ended", pid)
	}
	for _, task := range tasks {
		d, err := spentByTask(task, user)
		if err != nil {
			continue // a thread that has just ended
		}
		sum += d
		children, _ := os.ReadFile(task + "/children")
		for _, child := range strings.Fields(string(children)) {
			if n, err := strconv.Atoi(child); err == nil {
				if d, err := spent(n, user); err == nil {
					sum += d
				}
			}
		}
	}
	return sum, nil
}

// hertz is the kernel's unit of user time (proc(5), USER_HZ).
const hertz = 100

func spentByTask(task string, user bool) (time.Duration, error) {
	if !user {
		raw, err := os.ReadFile(task + "/schedstat")
		if err != nil {
			return 0, err
		}
		ns, err := strconv.ParseInt(strings.Fields(string(raw))[0], 10, 64)
		return time.Duration(ns), err
	}
	raw, err := os.ReadFile(task + "/stat")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(raw), ") ") // the name may hold spaces
	fields := strings.Fields(rest)
	const utime = 11 // field 14 of the line
	ticks, err := strconv.ParseInt(fields[utime], 10, 64)
	return time.Duration(ticks) * time.Second / hertz, err
}
