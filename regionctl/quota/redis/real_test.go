//go:build redis

package redis

import (
	"context"
	"math/rand/v2"
	"net"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/quota"
	regional "github.com/cellgate/cellgate/regionctl/quota"
)

// server is a redis-server that keeps nothing on disk.
type server struct {
	t       *testing.T
	address string
	cmd     *exec.Cmd
}

func startServer(t *testing.T, more ...string) *server {
	l, err := net.Listen("tcp", "127.34.5.2:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, address: l.Addr().String()}
	l.Close()
	s.start(more...)
	t.Cleanup(s.kill)
	return s
}

func (s *server) start(more ...string) {
	host, port, _ := net.SplitHostPort(s.address)
	s.cmd = exec.Command("redis-server", append([]string{"--bind", host, "--port", port, "--save", "", "--appendonly", "no", "--daemonize", "no"}, more...)...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal("redis-server (Debian: redis-server): ", err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if c, err := net.Dial("tcp", s.address); err == nil {
			c.Close()
			return
		} else if time.Now().After(end) {
			s.t.Fatal(err)
		}
	}
}

func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

func (s *server) open(t *testing.T, password func() (string, error)) *Server {
	r, err := New("redis://"+s.address, password)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The script and quota.Bucket are the same arithmetic: over random asks of many holders their grants agree.
func TestTheScriptGrantsAsABucketDoes(t *testing.T) {
	r := startServer(t).open(t, nil)
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 30 {
		now := int64(1_000_000_000) * int64(1+round)
		at := now
		r.instant = func() int64 { return at }
		stream, err := r.Leases(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c := stream.(*conversation).conn
		if _, err := c.call("FLUSHALL"); err != nil {
			t.Fatal(err)
		}
		l := quota.Limit{Rate: []float64{0.5, 5, 100, 12345}[rng.IntN(4)], Burst: float64(1 + rng.IntN(500)), Strict: rng.IntN(4) == 0}
		var b quota.Bucket
		key := quota.Name("k")
		began := at
		for step := range 60 {
			a := quota.Ask{Tries: int64(rng.IntN(40)), Elapsed: int64(rng.IntN(400)) * 1e6, Want: int64(rng.IntN(40)), Back: int64(rng.IntN(3)), Debt: int64(rng.IntN(3))}
			want := b.Grant((at-began)*1000, 0, l, a, quota.OfRegions(), 1) // a chance of 1 draws nothing
			m := r.command([]quota.Item{{Key: key, Limit: l, Ask: a}})
			m[len(m)-1] = "1"
			rep, err := c.call(m...)
			if err != nil || len(rep.list) != 1 {
				t.Fatal(rep, err)
			}
			got, err := grantOf(rep.list[0])
			if err != nil {
				t.Fatal(err)
			}
			if got.Tokens != want.Tokens || got.Calm != want.Calm || got.Credit != want.Credit || abs(got.Share-want.Share) > 1e-6 || abs(float64(got.Pause-want.Pause)) > 2000 {
				t.Fatalf("round %d, step %d, %+v, %+v:\n%+v, in memory\n%+v", round, step, l, a, got, want)
			}
			at += int64(rng.IntN(300_000))
		}
		c.close()
	}
}

func abs(f float64) float64 { return max(f, -f) }

// region is a controller's service that leases from the server.
func region(t *testing.T, from *Server) *regional.Service {
	began := time.Now()
	s := regional.New(regional.Options{
		Region: "eu", Topology: cells.Topology{Regions: []cells.Region{{ID: "eu", Cells: []cells.Cell{{ID: "eu/a", Nodes: []cells.Node{{ID: "eu/a/1"}}}}}}},
		Clock: func() int64 { return time.Since(began).Nanoseconds() }, Now: time.Now, Backed: true,
	})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{}, 2)
	go func() { _ = s.Backend().Watch(ctx); done <- struct{}{} }()
	go func() {
		for ctx.Err() == nil {
			_ = s.Backend().Settle(ctx, from)
			time.Sleep(50 * time.Millisecond)
		}
		done <- struct{}{}
	}()
	t.Cleanup(func() { stop(); <-done; <-done })
	return s
}

// spend is a node that takes whatever it is granted, for a while; it is always hungry.
func spend(s *regional.Service, l quota.Limit, length time.Duration) (tokens int64) {
	last := time.Now()
	for began := last; time.Since(began) < length; {
		time.Sleep(20 * time.Millisecond)
		now := time.Now()
		g := s.ToNode("eu/a", []quota.Item{{Key: quota.Name("k"), Limit: l, Ask: quota.Ask{Tries: 500, Elapsed: now.Sub(last).Nanoseconds(), Want: 500}}})[0]
		if g.Valid() {
			tokens += g.Tokens
		}
		last = now
	}
	return tokens
}

// Two regions that lease from one server have one limit, while it is killed and started again under load as well: without it each
// goes on with its part (H4), with it nothing is given out twice.
func TestALimitIsOneOverAllWhoLeaseFromAServerThatIsKilled(t *testing.T) {
	srv := startServer(t)
	const rate = 200
	l, strict := quota.Limit{Rate: rate, Burst: 40}, quota.Limit{Rate: rate, Burst: 40, Strict: true}
	a, b := region(t, srv.open(t, nil)), region(t, srv.open(t, nil))
	both := func(l quota.Limit, length time.Duration) float64 {
		var sum atomic.Int64
		began, done := time.Now(), make(chan struct{})
		go func() { sum.Add(spend(b, l, length)); close(done) }()
		sum.Add(spend(a, l, length))
		<-done
		return float64(sum.Load()) / time.Since(began).Seconds()
	}
	for end := time.Now().Add(20 * time.Second); a.Backend().Stats().Lost || b.Backend().Stats().Lost; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the server doesn't grant")
		}
	}
	both(l, time.Second)
	if got := both(l, 3*time.Second); got > 1.25*rate || got < 0.5*rate {
		t.Errorf("%.0f a second of %d", got, rate)
	}
	srv.kill()
	both(l, 2*time.Second) // what is left of leases
	// Each of these regions takes itself for the whole world here, so each has the whole limit as its part.
	if got := both(l, 3*time.Second); got > 2.2*rate || got < 0.5*rate {
		t.Errorf("%.0f a second of %d without the server", got, rate)
	}
	if got := both(strict, 2*time.Second); got > 2 {
		t.Errorf("%.0f a second of a limit that denies without its store", got)
	}
	srv.start()
	for end := time.Now().Add(20 * time.Second); a.Backend().Stats().Lost || b.Backend().Stats().Lost; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the server that is back doesn't grant")
		}
	}
	both(l, 2*time.Second)
	if got := both(l, 3*time.Second); got > 1.25*rate || got < 0.5*rate {
		t.Errorf("%.0f a second of %d with the server back", got, rate)
	}
}

func TestAServerWithAPasswordOrWithoutMemoryIsALostGrantor(t *testing.T) {
	srv := startServer(t, "--requirepass", "secret", "--maxmemory", "1", "--maxmemory-policy", "noeviction")
	if _, err := srv.open(t, nil).Leases(t.Context()); err == nil {
		t.Error("no password is needed")
	}
	stream, err := srv.open(t, func() (string, error) { return "secret", nil }).Leases(t.Context())
	if err == nil {
		if err = stream.Send(asks(1)); err == nil {
			var m *nodeapi.LeaseGrants
			if m, err = stream.Recv(); err == nil {
				t.Errorf("a server without memory grants %+v", m)
			}
		}
	}
}
