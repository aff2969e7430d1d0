package globalrouter

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, table *Table, addrs ...string) *Server {
	t.Helper()
	s := &Server{Workers: 2, Log: slog.New(slog.DiscardHandler)}
	for _, a := range addrs {
		s.Listen = append(s.Listen, netip.MustParseAddrPort(a))
	}
	s.Swap(table)
	if err := s.Bind(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return s
}

func TestServesUDPAndTCPOnEveryAddress(t *testing.T) {
	s := start(t, steeredTable(t), "127.23.2.1:0", "127.23.2.2:0", "[::1]:0")
	for _, a := range s.Bound() {
		for _, network := range []string{"udp", "tcp"} {
			c := &dns.Client{Net: network, Timeout: 2 * time.Second}
			r, _, err := c.Exchange(withECS(query("api.gw.test.", dns.TypeA), 1, 24, 0, 6, 1, 7), a.String())
			if err != nil || told(r) != "noerror aa 198.51.100.1" {
				t.Errorf("%s %s: %v %v", network, a, r, err)
			}
		}
	}
	st := s.Stats()
	if st.Answers["noerror"] != 6 || st.TCP != 3 {
		t.Errorf("%+v", st)
	}
}

// Many clients at once, a table swapped all the time: every query is answered, by its own answer.
func TestManyClientsAreAnsweredWhileTablesAreSwapped(t *testing.T) {
	table := steeredTable(t)
	s := start(t, table, "127.23.2.3:0")
	var clients sync.WaitGroup
	for i := range 16 {
		clients.Go(func() {
			c, err := net.Dial("udp", s.Bound()[0].String())
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			conn := &dns.Conn{Conn: c}
			for n := range 200 {
				m := query([]string{"api.gw.test.", "docs.gw.test.", "nope.gw.test.", "gw.test."}[n%4], []uint16{1, 16}[n%2])
				conn.SetDeadline(time.Now().Add(5 * time.Second))
				if err := conn.WriteMsg(m); err != nil {
					t.Errorf("client %d: %v", i, err)
					return
				}
				r, err := conn.ReadMsg()
				if err != nil || r.Id != m.Id || r.Question[0] != m.Question[0] {
					t.Errorf("client %d, query %d: %v %v", i, n, r, err)
					return
				}
			}
		})
	}
	for range 50 {
		s.Swap(steeredTable(t))
		time.Sleep(time.Millisecond)
	}
	clients.Wait()
}

func TestAnAddressInUseIsToldAndNothingStaysBound(t *testing.T) {
	s := start(t, steeredTable(t), "127.23.2.4:0")
	taken := s.Bound()[0]
	other := &Server{Listen: []netip.AddrPort{netip.MustParseAddrPort("127.23.2.5:0"), taken}}
	err := other.Bind()
	if err == nil || !strings.Contains(err.Error(), "address in use") {
		t.Fatalf("%v", err)
	}
	c, err := net.ListenPacket("udp", netip.AddrPortFrom(netip.MustParseAddr("127.23.2.6"), 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	udpOnly := c.LocalAddr().(*net.UDPAddr).AddrPort()
	if err := (&Server{Listen: []netip.AddrPort{udpOnly}}).Bind(); err == nil || !strings.Contains(err.Error(), "/udp: address in use") {
		t.Errorf("%v", err)
	}
	if err := (&Server{Listen: []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:0")}}).Bind(); err == nil {
		t.Error("bound the wildcard address, from which an answer's source is a guess")
	}
}

// Several queries on one connection, one of them in pieces; a connection that sends nonsense ends by itself.
func TestTCPConnectionsCarryManyQueries(t *testing.T) {
	s := start(t, steeredTable(t), "127.23.2.7:0")
	c, err := net.Dial("tcp", s.Bound()[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	packet, _ := query("docs.gw.test.", dns.TypeA).Pack()
	framed := append(binary.BigEndian.AppendUint16(nil, uint16(len(packet))), packet...)
	if _, err := c.Write(append(append([]byte{}, framed...), framed[:5]...)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond)
	if _, err := c.Write(framed[5:]); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r, err := (&dns.Conn{Conn: c}).ReadMsg()
		if err != nil || len(r.Answer) != 2 {
			t.Fatalf("%v %v", r, err)
		}
	}
	if _, err := c.Write([]byte{0, 3, 1, 2, 3}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("after nonsense: %v", err)
	}
}

func TestOneSourceCannotTakeAllConnections(t *testing.T) {
	c := &connections{from: map[netip.Addr]int{}}
	greedy, other := addr("192.0.2.1"), addr("192.0.2.2")
	n := 0
	for range 2000 {
		if c.enter(greedy) {
			n++
		}
	}
	if n != maxFromSource || !c.enter(other) {
		t.Errorf("one source holds %d connections", n)
	}
	c.leave(greedy)
	if !c.enter(greedy) {
		t.Error("a place that was left cannot be taken")
	}
	for range 2000 {
		c.enter(resolver)
	}
	if c.all != maxConnections {
		t.Errorf("%d connections in all", c.all)
	}
}
