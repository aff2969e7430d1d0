//go:build long

package e2e

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cellgate/cellgate/test/harness"
)

// redisServer is a redis-server that keeps nothing on disk.
type redisServer struct {
	t       *testing.T
	address string
	cmd     *exec.Cmd
}

func startRedis(t *testing.T) *redisServer {
	s := &redisServer{t: t, address: harness.FreeAddr(t)}
	if err := s.start(); err != nil {
		t.Fatal("redis-server (Debian: redis-server): ", err)
	}
	t.Cleanup(s.kill)
	harness.Eventually(t, 20*time.Second, "the Redis server listens", func() bool {
		c, err := net.Dial("tcp", s.address)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return s
}

func (s *redisServer) start() error {
	host, port, _ := net.SplitHostPort(s.address)
	s.cmd = exec.Command("redis-server", "--bind", host, "--port", port, "--save", "", "--appendonly", "no", "--daemonize", "no", "--maxmemory-policy", "noeviction")
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return s.cmd.Start()
}

func (s *redisServer) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// again starts the server that was killed; it has lost its memory.
func (s *redisServer) again() {
	if err := s.start(); err != nil {
		s.t.Error(err)
	}
}

// H2, H3, H4: a world whose limits live in a Redis server has one limit, and while the server is killed and comes back under load
// each region goes on with its part, or refuses where the limit says deny.
func TestLimitsInRedisAreTheWorldsAndOutliveTheServersDeath(t *testing.T) {
	server := startRedis(t)
	w := quotaWorld(t, "--proxies", "3", "--bake", "500ms", "--quota-redis", "redis://"+server.address)
	h := newHopper(t, w)
	before := h.messages()
	admitted, refused := h.run(16, nil)
	t.Logf("admitted %v; %.0f messages for %d requests", admitted, h.messages()-before, sum(admitted)+sum(refused))
	h.promised(admitted, 0)
	h.withinLimit(admitted, refused)

	const killed, back, seconds = 2, 10, 14
	dies := func(second int) {
		switch second {
		case killed:
			server.kill()
		case back:
			server.again()
		}
	}
	admitted, refused = h.run(seconds, dies)
	t.Logf("killed after %d s, back after %d: admitted %v, refused %v", killed, back, admitted, refused)
	h.promised(admitted[:back+1], tenantLimit/2)
	h.promised(admitted[back+1:], 0)
	for i, a := range admitted {
		if a == 0 {
			t.Errorf("second %d: nothing is admitted while a Redis server is away", i)
		}
	}
	admitted, refused = h.run(12, nil)
	t.Logf("with the server back: admitted %v", admitted)
	h.promised(admitted, 0)
	h.withinLimit(admitted, refused)

	sample, err := os.ReadFile(filepath.Join(w.Dir, "sample.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	strict := strings.Replace(string(sample), "{tenant: 1000/second}", "{tenant: 1000/second, on_store_loss: deny}", 1)
	w.mustRegionctl(t, "config", "publish", harness.WriteFile(t, "strict.yaml", strict), "--wait")
	h.run(2, nil) // what was granted of the limit before ends
	admitted, refused = h.run(seconds, dies)
	t.Logf("deny; killed after %d s, back after %d: admitted %v, refused %v", killed, back, admitted, refused)
	h.promised(admitted, 0)
	// Leases live a second; and each region may admit one request of a caller before it has heard of him.
	if n := sum(admitted[killed+2 : back]); n > 2 {
		t.Errorf("%d admitted of a limit that denies without its store", n)
	}
	if admitted[seconds-1] == 0 {
		t.Error("nothing is admitted once the server is back")
	}
}
