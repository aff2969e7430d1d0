package redis

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// at is where a server is, and how it is spoken to.
type at struct {
	address, user, database string
	secure                  bool
	password                func() (string, error)
}

func parse(raw string, password func() (string, error)) (a at, err error) {
	u, err := url.Parse(raw)
	if err != nil {
		return a, errors.New("redis: not a URL such as redis://10.0.0.5:6379/0") // the error would quote what may be a password
	}
	if _, has := u.User.Password(); has {
		return a, errors.New("redis: a URL is no place for a password: it stands in a file")
	}
	if u.Scheme != "redis" && u.Scheme != "rediss" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" {
		return a, errors.New("redis: not redis://[user@]host[:port][/database], or rediss for TLS")
	}
	a = at{address: u.Host, user: u.User.Username(), database: strings.Trim(u.Path, "/"), secure: u.Scheme == "rediss", password: password}
	if u.Port() == "" {
		a.address = net.JoinHostPort(u.Hostname(), "6379")
	}
	if _, err := strconv.ParseUint(a.database, 10, 16); err != nil && a.database != "" {
		return a, fmt.Errorf("redis: %q is no number of a database", a.database)
	}
	return a, nil
}

// conn is a connection that speaks RESP2 (https://redis.io/docs/latest/develop/reference/protocol-spec/). One goroutine sends, one
// reads replies.
type conn struct {
	c      net.Conn
	in     *bufio.Reader
	out    *bufio.Writer
	broken chan struct{} // closed by close
	once   sync.Once
}

func dial(ctx context.Context, a at) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", a.address)
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	if a.secure {
		host, _, _ := net.SplitHostPort(a.address)
		raw = tls.Client(raw, &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12})
	}
	c := &conn{c: raw, in: bufio.NewReader(raw), out: bufio.NewWriter(raw), broken: make(chan struct{})}
	_ = raw.SetDeadline(time.Now().Add(patience)) // of the beginning; a stream has a guard
	if err := c.begin(a); err != nil {
		c.close()
		return nil, fmt.Errorf("redis: %s: %w", a.address, err)
	}
	return c, nil
}

func (c *conn) begin(a at) error {
	if a.password != nil {
		secret, err := a.password()
		if err != nil {
			return err
		}
		args := []string{"AUTH", secret}
		if a.user != "" {
			args = []string{"AUTH", a.user, secret}
		}
		if _, err := c.call(args...); err != nil {
			return err
		}
	}
	if a.database != "" {
		if _, err := c.call("SELECT", a.database); err != nil {
			return err
		}
	}
	return nil
}

func (c *conn) close() {
	c.once.Do(func() {
		close(c.broken)
		c.c.Close()
	})
}

func (c *conn) call(args ...string) (reply, error) {
	if err := c.send(args...); err != nil {
		return reply{}, err
	}
	r, err := c.reply()
	_ = c.c.SetDeadline(time.Time{})
	return r, err
}

// send writes a command.
func (c *conn) send(args ...string) error {
	_ = c.c.SetWriteDeadline(time.Now().Add(patience))
	fmt.Fprintf(c.out, "*%d\r\n", len(args)) // errors stay until Flush
	for _, a := range args {
		fmt.Fprintf(c.out, "$%d\r\n", len(a))
		_, _ = c.out.WriteString(a)
		_, _ = c.out.WriteString("\r\n")
	}
	return c.out.Flush()
}

// reply is a text or a list of texts.
type reply struct {
	text string
	list []string
}

// Bounds of a reply.
const (
	mostText = 4 << 10
	mostList = 4096
)

var errReply = errors.New("not a reply of Redis")

// reply reads one. What the server calls an error is one.
func (c *conn) reply() (reply, error) {
	kind, head, err := readHead(c.in)
	if err != nil {
		return reply{}, err
	}
	if kind != '*' {
		text, err := readText(c.in, kind, head)
		return reply{text: text}, err
	}
	n, err := strconv.Atoi(head)
	if err != nil || n < 0 || n > mostList {
		return reply{}, errReply
	}
	r := reply{list: make([]string, n)}
	for i := range r.list {
		kind, head, err := readHead(c.in)
		if err != nil {
			return reply{}, err
		}
		if r.list[i], err = readText(c.in, kind, head); err != nil {
			return reply{}, err
		}
	}
	return r, nil
}

// readHead reads a line: its first byte says what it is.
func readHead(in *bufio.Reader) (kind byte, rest string, err error) {
	line, err := in.ReadSlice('\n')
	if err != nil {
		if errors.Is(err, bufio.ErrBufferFull) {
			err = errReply
		}
		return 0, "", err
	}
	if len(line) < 3 || line[len(line)-2] != '\r' {
		return 0, "", errReply
	}
	return line[0], string(line[1 : len(line)-2]), nil
}

func readText(in *bufio.Reader, kind byte, head string) (string, error) {
	switch kind {
	case '+', ':':
		return head, nil
	case '-':
		return "", fmt.Errorf("the server says: %.100q", head)
	case '$':
	default:
		return "", errReply
	}
	n, err := strconv.Atoi(head)
	if err != nil || n < 0 || n > mostText {
		return "", errReply
	}
	b := make([]byte, n+2)
	if _, err := io.ReadFull(in, b); err != nil {
		return "", err
	}
	if b[n] != '\r' || b[n+1] != '\n' {
		return "", errReply
	}
	return string(b[:n]), nil
}
