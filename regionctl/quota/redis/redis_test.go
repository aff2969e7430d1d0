package redis

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/quota"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake answers each command by its name with bytes as they are; no answer ends the connection.
func fake(t *testing.T, answers map[string]string) (address string, asked chan string) {
	l, err := net.Listen("tcp", "127.34.5.1:0")
	if err != nil {
		t.Fatal(err)
	}
	asked = make(chan string, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			in := bufio.NewReader(c)
			for {
				words, err := command(in)
				if err != nil {
					break
				}
				asked <- strings.Join(words, " ")
				if a, ok := answers[words[0]]; !ok {
					break
				} else if _, err := io.WriteString(c, a); err != nil {
					break
				}
			}
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String(), asked
}

func command(in *bufio.Reader) (words []string, err error) {
	var n int
	if _, err := fmt.Fscanf(in, "*%d\r\n", &n); err != nil {
		return nil, err
	}
	for range n {
		var size int
		if _, err := fmt.Fscanf(in, "$%d\r\n", &size); err != nil {
			return nil, err
		}
		b := make([]byte, size+2)
		if _, err := io.ReadFull(in, b); err != nil {
			return nil, err
		}
		words = append(words, string(b[:size]))
	}
	return words, nil
}

func asks(n int) *nodeapi.LeaseAsks {
	m := &nodeapi.LeaseAsks{Seq: 7}
	for i := range n {
		k := quota.Name(fmt.Sprint(i))
		m.Asks = append(m.Asks, &nodeapi.LeaseAsk{Key: k[:], Rate: 10, Burst: 5, Tries: 3, Want: 2})
	}
	return m
}

func TestAMessageIsSettledByOneCommand(t *testing.T) {
	address, asked := fake(t, map[string]string{
		"AUTH": "+OK\r\n", "SELECT": "+OK\r\n", "SCRIPT": "$2\r\nid\r\n", "PING": "+PONG\r\n",
		"EVALSHA": "*2\r\n$11\r\n2 0.5 1 1 0\r\n$13\r\n0 1 0 0 90000\r\n",
	})
	s, err := New("redis://me@"+address+"/3", func() (string, error) { return "secret", nil })
	if err != nil {
		t.Fatal(err)
	}
	stream, err := s.Leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(stream.Send(&nodeapi.LeaseAsks{Seq: 1}), stream.Send(asks(2))); err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); err != nil || m.Seq != 1 || len(m.Grants) != 0 {
		t.Fatal(m, err)
	}
	m, err := stream.Recv()
	if err != nil || m.Seq != 7 || len(m.Grants) != 2 || m.Grants[0].Tokens != 2 || m.Grants[0].Share != 0.5 || !m.Grants[0].Calm || m.Grants[1].Pause != 90000 || m.Grants[1].Absent {
		t.Fatal(m, err)
	}
	for _, want := range []string{"AUTH me secret", "SELECT 3", "SCRIPT LOAD", "PING", "EVALSHA " + s.id + " 3 " + prefix + "born " + prefix} {
		if got := <-asked; !strings.HasPrefix(got, want) {
			t.Errorf("asked %.80q, not %q", got, want)
		}
	}
}

// Whatever a server says that is no grant ends the stream: the grantor is lost then, and nobody is let in for it.
func TestWhatIsNoAnswerEndsTheStream(t *testing.T) {
	for name, answer := range map[string]string{
		"an error":          "-OOM command not allowed when used memory > 'maxmemory'.\r\n",
		"too few":           "*0\r\n",
		"too many":          "*3\r\n+1 1 1 1 1\r\n+1 1 1 1 1\r\n+1 1 1 1 1\r\n",
		"nothing in it":     "*1\r\n$-1\r\n",
		"a negative number": "*1\r\n+-5 1 1 1 1\r\n",
		"not a number":      "*1\r\n+x 1 1 1 1\r\n",
		"no number of it":   "*1\r\n+1 nan 1 1 1\r\n",
		"too large":         "*99999999\r\n",
		"a long line":       "*1\r\n+" + strings.Repeat("1", 9000) + "\r\n",
		"half":              "*1\r\n$30\r\n1",
		"other words":       "HTTP/1.1 400 Bad Request\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			address, _ := fake(t, map[string]string{"SCRIPT": "$2\r\nid\r\n", "EVALSHA": answer})
			s, err := New("redis://"+address, nil)
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer stop()
			stream, err := s.Leases(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Send(asks(1)); err != nil {
				t.Fatal(err)
			}
			if m, err := stream.Recv(); err == nil {
				t.Fatalf("%+v", m)
			}
		})
	}
}

func TestURLsHaveNoPasswordAndFaultsDontTellAny(t *testing.T) {
	for _, url := range []string{"redis://u:hunter2@h:1", "redis://:hunter2@h", "http://u:hunter2@h", "redis://u@h/x", "redis:///1", "redis://h?password=hunter2", "redis://u:hunter2@h:\x7f"} {
		if _, err := New(url, nil); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", url, err)
		}
	}
	if a, err := parse("rediss://h/0", nil); err != nil || a.address != "h:6379" || !a.secure || a.database != "0" {
		t.Errorf("%+v %v", a, err)
	}
}

func FuzzReply(f *testing.F) {
	for _, s := range []string{"+OK\r\n", "*2\r\n$1\r\na\r\n:5\r\n", "-ERR\r\n", "*-1\r\n", "$5\r\nab"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c := &conn{in: bufio.NewReader(strings.NewReader(string(b)))}
		r, err := c.reply()
		if err != nil {
			return
		}
		if len(r.text) > mostText+len(b) || len(r.list) > mostList {
			t.Fatalf("%d bytes, %d texts", len(r.text), len(r.list))
		}
	})
}
