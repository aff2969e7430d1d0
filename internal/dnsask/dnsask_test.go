package dnsask

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// server answers every query with what reply makes of it.
func server(t *testing.T, reply func(q dnsmessage.Message) dnsmessage.Message) string {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pc.Close() })
	go func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			var q dnsmessage.Message
			if q.Unpack(buf[:n]) != nil {
				continue
			}
			out := reply(q)
			if raw, err := out.Pack(); err == nil {
				_, _ = pc.WriteTo(raw, from)
			}
		}
	}()
	return pc.LocalAddr().String()
}

func TestTheQuestionCarriesTheClientsSubnetAndTheSmallestTTLCounts(t *testing.T) {
	asked := make(chan []byte, 1)
	at := server(t, func(q dnsmessage.Message) dnsmessage.Message {
		asked <- q.Additionals[0].Body.(*dnsmessage.OPTResource).Options[0].Data
		out := dnsmessage.Message{Header: dnsmessage.Header{ID: q.ID, Response: true}, Questions: q.Questions}
		for i, ttl := range []uint32{9, 5} {
			out.Answers = append(out.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Questions[0].Name, Class: dnsmessage.ClassINET, TTL: ttl},
				Body:   &dnsmessage.AResource{A: [4]byte{127, 0, 0, byte(i + 1)}},
			})
		}
		return out
	})
	addrs, ttl, err := A(t.Context(), at, "api.gw.test", netip.MustParsePrefix("5.1.7.0/24"))
	if err != nil || len(addrs) != 2 || addrs[1] != netip.MustParseAddr("127.0.0.2") || ttl != 5*time.Second {
		t.Errorf("%v %v %v", addrs, ttl, err)
	}
	if ecs := <-asked; string(ecs) != string([]byte{0, 1, 24, 0, 5, 1, 7}) {
		t.Errorf("client subnet %v", ecs)
	}
}

func TestWhatIsNoAnswerIsAnError(t *testing.T) {
	for name, change := range map[string]func(*dnsmessage.Message){
		"another id": func(m *dnsmessage.Message) { m.ID++ },
		"a question": func(m *dnsmessage.Message) { m.Response = false },
		"a refusal":  func(m *dnsmessage.Message) { m.RCode = dnsmessage.RCodeRefused },
	} {
		at := server(t, func(q dnsmessage.Message) dnsmessage.Message {
			out := dnsmessage.Message{Header: dnsmessage.Header{ID: q.ID, Response: true}, Questions: q.Questions}
			change(&out)
			return out
		})
		if addrs, _, err := A(t.Context(), at, "api.gw.test", netip.MustParsePrefix("5.1.7.0/24")); err == nil {
			t.Errorf("%s: %v", name, addrs)
		}
	}
}
