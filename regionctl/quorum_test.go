package regionctl

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/store/etcd"
	"github.com/cellgate/cellgate/store/etcd/server"
	"github.com/cellgate/cellgate/trust"
)

// members are a real etcd cluster of three, each of which can be ended and started again on its data.
type members struct {
	w      *world
	addrs  []string
	conf   []server.Config
	end    []func() // kill -9
	signal []func(syscall.Signal)
}

func (w *world) etcds() *members {
	w.t.Helper()
	dir, m := w.t.TempDir(), &members{w: w, end: make([]func(), 3), signal: make([]func(syscall.Signal), 3)}
	write := func(name string, b []byte) string {
		p := filepath.Join(dir, name)
		must(w.t, os.WriteFile(p, b, 0o600))
		return p
	}
	ca, peers := write("ca", w.ca.CertPEM()), map[string]netip.AddrPort{}
	for i := range 3 {
		name := fmt.Sprint("m", i)
		addr, peer := w.freeAddr(), w.freeAddr()
		cert, key, err := w.ca.Issue(trust.Identity{World: "gw.test", Role: trust.RoleEtcd, ID: cells.NodeID("eu-west/" + name)}, []netip.Addr{addr.Addr()}, nil, time.Now(), time.Hour)
		must(w.t, err)
		peers[name] = peer
		m.addrs = append(m.addrs, "https://"+addr.String())
		m.conf = append(m.conf, server.Config{Name: name, Dir: filepath.Join(dir, name), Addr: addr, Peer: peer, Cluster: peers,
			Cert: write(name+".crt", cert), Key: write(name+".key", key), CA: ca, Heartbeat: 50 * time.Millisecond})
	}
	return m
}

// memberEnv tells this test binary to be a member with the configuration that it holds.
const memberEnv = "CELLGATE_TEST_ETCD_MEMBER"

// start runs a member as a process of its own; ready is closed when it serves.
func (m *members) start(i int) (ready chan struct{}) {
	m.w.t.Helper()
	conf, err := json.Marshal(m.conf[i])
	must(m.w.t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), memberEnv+"="+string(conf))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	must(m.w.t, err)
	must(m.w.t, cmd.Start())
	ready = make(chan struct{})
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if lines.Text() == "ready" {
				close(ready)
			}
		}
	}()
	m.end[i] = sync.OnceFunc(func() {
		cmd.Process.Kill()
		<-read
		cmd.Wait()
	})
	m.w.t.Cleanup(m.end[i])
	m.signal[i] = func(s syscall.Signal) { must(m.w.t, cmd.Process.Signal(s)) }
	return ready
}

func (m *members) open() store.Store {
	s, err := etcd.Open(etcd.Config{Endpoints: m.addrs, TLS: trust.ClientTLS(m.w.signer(trust.RoleController, "eu-west/1"), m.w.roots, trust.RoleEtcd)})
	must(m.w.t, err)
	m.w.t.Cleanup(func() { s.Close() })
	return s
}

// Two of three members are gone: nodes and reads go on, orders are refused within three seconds and in clear words, also
// those given before anybody has noticed, and everything goes on by itself when one comes back.
func TestWithoutQuorumReadsGoOnAndOrdersAreRefusedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := w.etcds()
	var ready []chan struct{}
	for i := range 3 {
		ready = append(ready, m.start(i))
	}
	for _, r := range ready {
		<-r
	}
	w.openGlobal = m.open
	w.startAll()
	w.eventually("a leader", 10*time.Second, func() bool { _, ok := w.regions["eu-west"].c.leader(); return ok })
	first := w.publishRoutes("eu-west", 1).Version
	w.eventually("every node serves it", 15*time.Second, func() bool { return w.allServe(first) })

	m.end[1]()
	m.end[2]()
	for range 2 { // at once, and once it was noticed
		began := time.Now()
		_, f := w.publish("us-east", PublishRequest{Files: []PublishFile{{Name: "a.yaml", Data: routesDocument(2)}}, Confirm: true})
		if took := time.Since(began); f == nil || f.Status != http.StatusServiceUnavailable || f.Reason != "store_unavailable" || took > slack*3*time.Second {
			t.Fatalf("publishing without a quorum: %v after %v", f, took)
		}
		w.eventually("the controller notices", 5*time.Second, w.regions["us-east"].c.globalSeen.lost.Load)
	}
	began := time.Now()
	if code, f := w.ask("eu-west", "POST", "/v1/rollouts/current:pause", RolloutOrder{}, nil); code != http.StatusServiceUnavailable || time.Since(began) > slack*3*time.Second {
		t.Errorf("an order to the rollout: %d %v after %v", code, f, time.Since(began))
	}
	if s := w.status("us-east"); s.Version != first || len(s.Nodes) != 8 || s.Nodes[0].Served != first {
		t.Errorf("status without a quorum: version %d, %+v", s.Version, s.Nodes)
	}

	// They come back, and the one that had stayed is stopped, as by a disk that hangs: the two go on without it.
	<-m.start(1)
	<-m.start(2)
	m.signal[0](syscall.SIGSTOP)
	var second uint64
	w.eventually("publishing works again", 10*time.Second, func() bool {
		p, f := w.publish("us-east", PublishRequest{Files: []PublishFile{{Name: "a.yaml", Data: routesDocument(3)}}, Confirm: true})
		second = p.Version
		return f == nil
	})
	w.eventually("its rollout begins", 10*time.Second, func() bool {
		for _, n := range w.nodes {
			if n.serves() == second {
				return true
			}
		}
		return false
	})
	w.eventually("status names the member", 15*time.Second, func() bool {
		return strings.Contains(strings.Join(w.status("us-east").Warnings, "\n"), "its member "+m.addrs[0]+" does not answer")
	})
	m.signal[0](syscall.SIGCONT)
}

// A store whose every commit takes a third of a second makes publishing slower, and nothing else: the leader keeps its office,
// the version reaches every node, and reads answer from memory.
func TestSlowDiskSlowsPublishingOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.globalGate = &gated{Store: w.global.Join()}
	w.startAll()
	first := w.publishRoutes("eu-west", 1).Version
	w.eventually("every node serves it", 10*time.Second, func() bool { return w.allServe(first) })
	leader, err := w.global.Get(t.Context(), store.KeyLeader)
	must(t, err)
	w.globalGate.slow.Store(int64(300 * time.Millisecond))
	second := w.publishRoutes("eu-west", 2).Version
	w.eventually("a status that doesn't wait for the disk", 2*time.Second, func() bool {
		began := time.Now()
		w.status("us-east")
		return time.Since(began) < 250*time.Millisecond
	})
	w.eventually("every node serves it", 20*time.Second, func() bool { return w.allServe(second) })
	if now, err := w.global.Get(t.Context(), store.KeyLeader); err != nil || now.Modified != leader.Modified {
		t.Errorf("the leader lost its office to a slow disk: %v", err)
	}
}
