package dns

import (
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// saying is a server that makes what it likes of each answer, which is NODATA before; false = it says nothing.
type saying func(m *dns.Msg, udp bool) bool

func (f saying) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg)
	m.SetReply(q)
	m.RecursionAvailable = true
	if _, udp := w.RemoteAddr().(*net.UDPAddr); f(m, udp) {
		_ = w.WriteMsg(m)
	}
}

// script follows a name at a server whose ways may be changed.
func script(t *testing.T, name string) (told chan []string, say func(saying), asked *atomic.Int64) {
	var now atomic.Pointer[saying]
	asked = &atomic.Int64{}
	say = func(f saying) { now.Store(&f) }
	say(func(*dns.Msg, bool) bool { return false })
	at := handle(t, saying(func(m *dns.Msg, udp bool) bool {
		defer asked.Add(1)
		return (*now.Load())(m, udp)
	}))
	return follow(t, name, Options{Servers: []string{at}, hold: 150 * time.Millisecond, timeout: 60 * time.Millisecond}), say, asked
}

// with answers each question by the records of its type.
func with(records ...string) saying {
	return func(m *dns.Msg, _ bool) bool {
		add(m, m.Question[0].Qtype, records...)
		return true
	}
}

// add adds those of a type; 0 = all.
func add(m *dns.Msg, kind uint16, records ...string) {
	for _, text := range records {
		rr, err := dns.NewRR(text)
		if err != nil {
			panic(err)
		}
		if h := rr.Header(); kind == 0 || h.Rrtype == kind {
			m.Answer = append(m.Answer, rr)
		}
	}
}

// stays says that nothing is told while the server is asked for longer than an empty answer has to be repeated.
func stays(t *testing.T, told chan []string, asked *atomic.Int64) {
	t.Helper()
	began, n := time.Now(), asked.Load()
	for time.Since(began) < 250*time.Millisecond || asked.Load() < n+2 {
		select {
		case got := <-told:
			t.Fatalf("told %v", got)
		case <-time.After(5 * time.Millisecond):
		}
		if time.Since(began) > 10*time.Second {
			t.Fatal("nobody asks any more")
		}
	}
}

// A family that fails, in whatever way, takes nothing from the other one, and keeps what it has said last. That there is no endpoint
// has to be said for both.
func TestAFamilyThatFailsTakesNothingFromTheOther(t *testing.T) {
	for name, fails := range map[string]saying{
		"SERVFAIL": func(m *dns.Msg, _ bool) bool { m.Rcode = dns.RcodeServerFailure; return true },
		"NOTIMP":   func(m *dns.Msg, _ bool) bool { m.Rcode = dns.RcodeNotImplemented; return true },
		"silence":  func(*dns.Msg, bool) bool { return false },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			told, say, asked := script(t, "a.test:80")
			half := func(records ...string) saying {
				return func(m *dns.Msg, udp bool) bool {
					if m.Question[0].Qtype == dns.TypeAAAA {
						return fails(m, udp)
					}
					return with(records...)(m, udp)
				}
			}
			say(half("a.test. 0 A 10.0.0.1"))
			next(t, told, "10.0.0.1:80")
			say(with("a.test. 0 A 10.0.0.1", "a.test. 0 AAAA fd00::1"))
			next(t, told, "10.0.0.1:80", "[fd00::1]:80")
			say(half("a.test. 0 A 10.0.0.2"))
			next(t, told, "10.0.0.2:80", "[fd00::1]:80")
			say(half())
			next(t, told, "[fd00::1]:80")
			say(with("a.test. 0 A 10.0.0.1"))
			next(t, told, "10.0.0.1:80")
			say(half()) // neither says that there is none
			stays(t, told, asked)
		})
	}
}

// A target that fails takes nothing from the others of a service.
func TestATargetThatFailsTakesNothingFromTheOthers(t *testing.T) {
	told, say, _ := script(t, "_o._tcp.test")
	srv := []string{"_o._tcp.test. 0 SRV 1 1 80 a.test.", "_o._tcp.test. 0 SRV 1 1 80 b.test."}
	zone := func(fails string, records ...string) saying {
		return func(m *dns.Msg, udp bool) bool {
			if m.Question[0].Name == fails {
				m.Rcode = dns.RcodeServerFailure
				return true
			}
			for _, text := range append(records, srv...) {
				if strings.HasPrefix(text, m.Question[0].Name) {
					add(m, m.Question[0].Qtype, text)
				}
			}
			return true
		}
	}
	say(zone("b.test.", "a.test. 0 A 10.0.0.1", "b.test. 0 A 10.0.0.2"))
	next(t, told, "10.0.0.1:80")
	say(zone("", "a.test. 0 A 10.0.0.1", "b.test. 0 A 10.0.0.2"))
	next(t, told, "10.0.0.1:80", "10.0.0.2:80")
	say(zone("_o._tcp.test.", "a.test. 0 A 10.0.0.3", "b.test. 0 A 10.0.0.2"))
	next(t, told, "10.0.0.2:80", "10.0.0.3:80")
	say(zone("b.test.", "a.test. 0 A 10.0.0.4"))
	next(t, told, "10.0.0.2:80", "10.0.0.4:80")
}

// What is no answer to the question takes nothing away, however long it is given: CASES G61.
func TestWhatIsNoAnswerIsNoEmptySet(t *testing.T) {
	ns := func(m *dns.Msg) {
		rr, _ := dns.NewRR("test. 60 NS ns.elsewhere.")
		m.Ns = append(m.Ns, rr)
	}
	for name, says := range map[string]saying{
		"the question itself":          func(m *dns.Msg, _ bool) bool { m.Response = false; return true },
		"a referral":                   func(m *dns.Msg, _ bool) bool { ns(m); return true },
		"a reply to another operation": func(m *dns.Msg, _ bool) bool { m.Opcode = dns.OpcodeNotify; return true },
		"an alias that isn't looked up": func(m *dns.Msg, _ bool) bool {
			m.RecursionAvailable = false
			add(m, 0, "a.test. 0 CNAME b.elsewhere.")
			return true
		},
		"aliases in a circle": func(m *dns.Msg, _ bool) bool {
			add(m, 0, "a.test. 0 CNAME b.test.", "b.test. 0 CNAME a.test.")
			return true
		},
		"what is cut, over TCP as well": func(m *dns.Msg, _ bool) bool {
			m.Truncated = true
			add(m, dns.TypeA, "a.test. 0 A 10.0.0.9")
			return true
		},
		"an error without a question":         func(m *dns.Msg, _ bool) bool { m.Question, m.Rcode = nil, dns.RcodeFormatError; return true },
		"success, or not, without a question": func(m *dns.Msg, _ bool) bool { m.Question, m.Rcode = nil, dns.RcodeNameError; return true },
		"a code that means nothing here":      func(m *dns.Msg, _ bool) bool { m.Rcode = dns.RcodeYXDomain; return true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			told, say, asked := script(t, "a.test:80")
			say(with("a.test. 0 A 10.0.0.1"))
			next(t, told, "10.0.0.1:80")
			say(says)
			stays(t, told, asked)
			say(with())
			next(t, told)
		})
	}
}

func TestRecordsCountThatAreTheNames(t *testing.T) {
	long := []string{"a.test. 0 CNAME n0.test."}
	for i := range 10 {
		long = append(long, fmt.Sprintf("n%d.test. 0 CNAME n%d.test.", i, i+1))
	}
	for name, c := range map[string]struct{ says, want []string }{
		"beside others'":            {[]string{"b.test. 0 A 10.6.6.6", "a.test. 0 A 10.0.0.1", "test. 0 A 10.6.6.7", "a.test. 0 TXT x"}, []string{"10.0.0.1:80"}},
		"in another class":          {[]string{"a.test. 0 CH A 10.6.6.6", "a.test. 0 A 10.0.0.1"}, []string{"10.0.0.1:80"}},
		"behind an alias":           {[]string{"a.test. 0 CNAME b.test.", "b.test. 0 A 10.0.0.1", "b.test. 0 A 10.0.0.2"}, []string{"10.0.0.1:80", "10.0.0.2:80"}},
		"whatever their order":      {[]string{"c.test. 0 A 10.0.0.1", "B.test. 0 CNAME C.test.", "a.test. 0 CNAME b.test.", "x.test. 0 A 10.6.6.6"}, []string{"10.0.0.1:80"}},
		"in capitals":               {[]string{"A.TEST. 0 A 10.0.0.1"}, []string{"10.0.0.1:80"}},
		"behind many":               {append(long, "n10.test. 0 A 10.0.0.1"), []string{"10.0.0.1:80"}},
		"beside an alias of them":   {[]string{"a.test. 0 A 10.0.0.1", "a.test. 0 CNAME b.test.", "b.test. 0 A 10.0.0.2"}, []string{"10.0.0.1:80"}},
		"though the name has none":  {[]string{"b.test. 0 A 10.6.6.6"}, nil},
		"though its alias has none": {[]string{"a.test. 0 CNAME b.test."}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			told, say, _ := script(t, "a.test:80")
			say(func(m *dns.Msg, _ bool) bool { add(m, 0, c.says...); return true })
			next(t, told, c.want...)
		})
	}
}

// An answer that no datagram of the announced size holds is asked for over TCP, also from a server that doesn't say that it is cut.
func TestAnAnswerThatIsTooLargeForADatagramComesOverTCP(t *testing.T) {
	told, say, _ := script(t, "a.test:80")
	say(func(m *dns.Msg, udp bool) bool {
		n := 3
		if udp {
			n = 100
		}
		for i := range n {
			add(m, m.Question[0].Qtype, fmt.Sprintf("a.test. 0 A 10.0.0.%d", 1+i))
		}
		return true
	})
	next(t, told, "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80")
}

// The first of two servers says nothing: it is asked once, not once for each of a service's targets.
func TestADeadServerCostsItsTimeOnce(t *testing.T) {
	dead, err := net.ListenPacket("udp", "127.22.3.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	var records, want []string
	for i := range 20 {
		records = append(records, fmt.Sprintf("_o._tcp.test. 60 SRV 1 1 80 t%d.test.", i))
		want = append(want, fmt.Sprintf("10.0.0.%d:80", 10+i))
	}
	at := handle(t, saying(func(m *dns.Msg, _ bool) bool {
		var i int
		if _, err := fmt.Sscanf(m.Question[0].Name, "t%d.test.", &i); err == nil {
			add(m, m.Question[0].Qtype, fmt.Sprintf("t%d.test. 60 A 10.0.0.%d", i, 10+i))
			return true
		}
		return with(records...)(m, true)
	}))
	began := time.Now()
	told := follow(t, "_o._tcp.test", Options{Servers: []string{dead.LocalAddr().String(), at}, timeout: 300 * time.Millisecond})
	next(t, told, want...)
	if d := time.Since(began); d > 3*time.Second {
		t.Errorf("it took %v", d)
	}
}

// A service of many targets at a server that has died: the look ends, and what is known stays.
func TestALookAtADeadServerEnds(t *testing.T) {
	alive := func(n int) (answers saying, want []string) {
		var records []string
		for i := range n {
			records = append(records, fmt.Sprintf("_o._tcp.test. 0 SRV 1 1 80 t%d.test.", i))
			want = append(want, fmt.Sprintf("10.0.0.%d:80", 100+i))
		}
		return func(m *dns.Msg, udp bool) bool {
			var i int
			if _, err := fmt.Sscanf(m.Question[0].Name, "t%d.test.", &i); err == nil {
				add(m, m.Question[0].Qtype, fmt.Sprintf("t%d.test. 0 A 10.0.0.%d", i, 100+i))
				return true
			}
			return with(records...)(m, udp)
		}, want
	}
	told, say, asked := script(t, "_o._tcp.test")
	answers, want := alive(100)
	say(answers)
	next(t, told, want...)
	say(func(*dns.Msg, bool) bool { return false })
	time.Sleep(300 * time.Millisecond) // questions of the look before are through
	n := asked.Load()
	stays(t, told, asked)
	if more := asked.Load() - n; more > 20 {
		t.Errorf("%d questions to a server that is dead", more)
	}
	answers, want = alive(50)
	say(answers)
	next(t, told, want...)
}

// Of too many the same ones count, however the server turns them round.
func TestTooManyOfAServiceAreTheSameOnesEachTime(t *testing.T) {
	var turned atomic.Int64
	told, say, asked := script(t, "_o._tcp.test")
	say(func(m *dns.Msg, udp bool) bool {
		if m.Question[0].Qtype != dns.TypeSRV {
			return with("a.test. 0 A 10.0.0.1")(m, udp)
		}
		m.Truncated = udp
		for i := range maxEndpoints + 100 {
			if n := int(turned.Load()); !udp {
				add(m, 0, fmt.Sprintf("_o._tcp.test. 0 SRV 1 1 %d a.test.", 1000+(i+n)%(maxEndpoints+100)))
			}
		}
		turned.Add(77)
		return true
	})
	if got := <-told; len(got) != maxEndpoints {
		t.Fatalf("%d endpoints", len(got))
	}
	stays(t, told, asked)
}

// Nor do a few hundred ports of a thousand addresses.
func TestPortsTimesAddressesFillNoMemory(t *testing.T) {
	var log strings.Builder // written to before the set is told
	at := handle(t, saying(func(m *dns.Msg, udp bool) bool {
		q := m.Question[0]
		m.Truncated = udp
		for i := range 1000 {
			switch h := (dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: 60}); {
			case udp:
			case q.Qtype == dns.TypeSRV && i < 400:
				m.Answer = append(m.Answer, &dns.SRV{Hdr: h, Port: uint16(1000 + i), Target: "a.test."})
			case q.Qtype == dns.TypeA:
				m.Answer = append(m.Answer, &dns.A{Hdr: h, A: net.IPv4(10, 1, byte(i/250), byte(1+i%250))})
			}
		}
		return true
	}))
	told := follow(t, "_o._tcp.test", Options{Servers: []string{at}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if got := <-told; len(got) != maxEndpoints {
		t.Fatalf("%d endpoints", len(got))
	}
	var n int
	if _, rest, ok := strings.Cut(log.String(), " endpoints="); ok {
		_, _ = fmt.Sscan(rest, &n)
	}
	if n < maxEndpoints || n > mostRecords+1000 {
		t.Errorf("%d endpoints were put together: %s", n, log.String())
	}
}

// Whoever answers with ever more is not asked for all of it.
func TestAServiceWithoutEndFillsNoMemory(t *testing.T) {
	var targets []string
	for i := range 40 {
		targets = append(targets, fmt.Sprintf("_o._tcp.test. 60 SRV 1 1 80 t%02d.test.", i))
	}
	told, say, asked := script(t, "_o._tcp.test")
	say(func(m *dns.Msg, udp bool) bool {
		q := m.Question[0]
		if q.Qtype != dns.TypeA {
			return with(targets...)(m, udp)
		}
		if m.Truncated = udp; !udp {
			for i := range 1000 {
				m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.IPv4(10, 1, byte(i/250), byte(1+i%250))})
			}
		}
		return true
	})
	if got := <-told; len(got) != maxEndpoints {
		t.Fatalf("%d endpoints", len(got))
	}
	if n := asked.Load(); n > 1+3*(mostRecords/1000+1) {
		t.Errorf("%d questions", n)
	}
}
