package listen

import (
	"bytes"
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/ipv4"
)

// group are processes that share an address, by name.
type group struct {
	t    *testing.T
	addr string
	has  map[string]*UDP
	in   map[string]<-chan ipv4.Message
}

func newGroup(t *testing.T, names ...string) *group {
	g := &group{t, "127.42.9.3:0", map[string]*UDP{}, map[string]<-chan ipv4.Message{}}
	for _, name := range names {
		g.join(name, new(Sockets))
	}
	t.Cleanup(func() {
		for name := range g.has {
			g.end(name)
		}
	})
	return g
}

func (g *group) join(name string, s *Sockets) *Sockets {
	g.t.Helper()
	u, err := s.UDP(context.Background(), "https", g.addr, true)
	if err != nil {
		g.t.Fatal(err)
	}
	g.addr, g.has[name], g.in[name] = u.LocalAddr().String(), u, reads(u)
	return s
}

func (g *group) end(name string) {
	g.has[name].Close()
	for range g.in[name] {
	}
	delete(g.has, name)
	delete(g.in, name)
}

func (g *group) id(name string) []byte {
	id, _ := g.has[name].GenerateConnectionID()
	return id.Bytes()
}

// goes sends a packet from as many addresses as it takes for each process to get it from the kernel, and says who reads it then.
func (g *group) goes(p []byte) string {
	g.t.Helper()
	seen := map[string]bool{}
	for range 40 {
		c, err := net.Dial("udp", g.addr)
		if err != nil {
			g.t.Fatal(err)
		}
		if _, err := c.Write(p); err != nil {
			g.t.Fatal(err)
		}
		name, m := g.next()
		if !bytes.Equal(m.Buffers[0][:m.N], p) || m.Addr.String() != c.LocalAddr().String() {
			g.t.Errorf("%s reads %x of %v", name, m.Buffers[0][:m.N], m.Addr)
		}
		seen[name] = true
		c.Close()
	}
	var all []string
	for name := range seen {
		all = append(all, name)
	}
	return strings.Join(all, " ")
}

// next is the next packet that anyone reads.
func (g *group) next() (string, ipv4.Message) {
	g.t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Microsecond) {
		for name, in := range g.in {
			select {
			case m := <-in:
				return name, m
			default:
			}
		}
	}
	g.t.Fatal("a packet is lost")
	return "", ipv4.Message{}
}

func (g *group) expect(p []byte, want string) {
	g.t.Helper()
	if got := g.goes(p); got != want {
		g.t.Errorf("%x goes to %q, not %q", p[:min(len(p), 20)], got, want)
	}
}

// F8: whoever of a cell the kernel gives a packet to, it reaches the process that has its connection, while processes come and go.
func TestPacketsReachTheSiblingThatMadeTheirIDs(t *testing.T) {
	g := newGroup(t, "a", "b", "c")
	a, b, c := g.id("a"), g.id("b"), g.id("c")
	for range 2 {
		g.expect(packet(false, a), "a")
		g.expect(packet(true, b), "b")
		g.expect(packet(false, c), "c")
	}
	if got := g.goes(packet(true, a[:8])); len(strings.Fields(got)) != 3 {
		t.Errorf("clients that come go to %s", got)
	}
	g.end("c")
	g.expect(packet(false, a), "a")
	g.expect(packet(false, b), "b")
	if got := g.goes(packet(false, c)); len(strings.Fields(got)) != 2 {
		t.Errorf("packets of who is no more go to %s", got)
	}
	g.join("d", new(Sockets))
	g.expect(packet(false, g.id("d")), "d")
	g.expect(packet(false, a), "a")
}

// A process that is replaced keeps its packets, wherever the kernel or a sibling gets them.
func TestPacketsReachASiblingThatIsReplaced(t *testing.T) {
	g := newGroup(t, "b")
	before := g.join("old", new(Sockets))
	after := handed(t, before)
	before.Yield()
	g.join("new", after)
	for range 2 {
		g.expect(packet(false, g.id("old")), "old")
		g.expect(packet(false, g.id("new")), "new")
		g.expect(packet(false, g.id("b")), "b")
	}
	old := g.id("old")
	g.end("old")
	g.expect(packet(false, g.id("new")), "new")
	g.expect(packet(false, g.id("b")), "b")
	if got := g.goes(packet(false, old)); len(strings.Fields(got)) != 2 {
		t.Errorf("packets of who is no more go to %s", got)
	}
}

// A process that leaves gives those who come to a sibling, if it has one, and keeps what is its own.
func TestWhoLeavesGivesClientsToASibling(t *testing.T) {
	g := newGroup(t, "a")
	comes := packet(true, make([]byte, 8))
	if g.has["a"].Leave(); g.has["a"].Left() {
		t.Error("nobody is there to take over")
	}
	g.expect(comes, "a")
	g.join("b", new(Sockets))
	if g.has["a"].Leave(); !g.has["a"].Left() {
		t.Error("b is there")
	}
	g.expect(comes, "b")
	g.expect(packet(false, g.id("a")), "a")
	g.end("b")
	g.expect(comes, "a")
}

// What is no packet, or comes in masses, harms nobody; nor do marks of nobody.
func TestMailboxesAreBounded(t *testing.T) {
	g := newGroup(t, "a", "b")
	box := g.has["a"].siblings.name
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: box, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, raw := range [][]byte{{0}, {0, 9, 1}, {0, 0}, {0, 0, 0, 0}, {0, 1, 7, 0, 0}, bytes.Repeat([]byte{0xff}, 3000)} {
		if _, err := c.Write(raw); err != nil {
			t.Fatal(err)
		}
	}
	g.expect(packet(false, g.id("a")), "a")
	u := g.has["b"]
	for range 2 * maxAsked {
		id := g.id("b")
		id[0] ^= 1
		u.siblings.send(markOf(packet(false, id)), &ipv4.Message{})
	}
	u.siblings.mu.Lock()
	if u.siblings.asked > maxAsked || len(u.siblings.to) > 1 {
		t.Errorf("%d looks, %d connections", u.siblings.asked, len(u.siblings.to))
	}
	u.siblings.mu.Unlock()
	if _, err := openMailbox(g.addr, u.mark, func([]byte) {}); err == nil {
		t.Error("a mark was given twice")
	}
	if b, err := os.ReadFile("/proc/net/unix"); err != nil || !strings.Contains(string(b), box) {
		t.Errorf("the system doesn't list %q: %v", box, err)
	}
}
