//go:build long

package contract

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// One proxy holds 15,000 idle connections, each of which has carried a request, and has memory of its own of at most 1 kB for
// a plain one and 16 kB for one over TLS a minute later. It still serves, and takes new ones.
func TestAProxyHoldsFifteenThousandIdleConnections(t *testing.T) {
	const clients = 15_000
	for scheme, most := range map[string]int{"http": 1 << 10, "https": 16 << 10} {
		t.Run(scheme, func(t *testing.T) {
			u := newUpgradable(t)
			before := resident(t, u.cmd.Process.Pid)
			conns, failed := make([]net.Conn, clients), make(chan error, clients)
			var all sync.WaitGroup
			for part := range 8 {
				all.Go(func() {
					for i := part; i < clients; i += 8 {
						s := &strict{addr: u.http, path: "/v1/x"}
						if scheme == "https" {
							s.addr, s.tls = u.https, &tls.Config{InsecureSkipVerify: true}
						}
						if err := s.one(); err != nil {
							failed <- fmt.Errorf("connection %d: %w", i, err)
							return
						}
						conns[i] = s.c
					}
				})
			}
			all.Wait()
			close(failed)
			for err := range failed {
				t.Fatal(err)
			}
			defer func() {
				for _, c := range conns {
					c.Close()
				}
			}()
			time.Sleep(time.Minute)
			each := (resident(t, u.cmd.Process.Pid) - before) / clients
			t.Logf("%s: %d bytes of resident memory for each connection", scheme, each)
			if each > most {
				t.Errorf("%d bytes for each, more than %d", each, most)
			}
			if err := oneOrder(&http.Transport{DisableKeepAlives: true}, u.http); err != nil {
				t.Error(err)
			}
		})
	}
}

// resident is the memory of a process in bytes.
func resident(t *testing.T, pid int) (bytes int) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, ok := strings.Cut(string(raw), "VmRSS:")
	if _, err := fmt.Sscan(rest, &bytes); err != nil || !ok {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return bytes << 10
}
