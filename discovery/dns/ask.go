package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// mostAliases is how many aliases in a row are followed.
const mostAliases = 16

// question is what is asked: a name in lower case with its final dot, and a type of records.
type question struct {
	name string
	kind uint16
}

// answer is what a question says: no records = there are none.
type answer struct {
	records []dns.RR
	ttl     time.Duration
}

// errSilent says that no server has answered at all.
var errSilent = errors.New("no server answers")

// ask asks the servers in turn until one says something.
func (r *Resolver) ask(ctx context.Context, asked question) (answer, error) {
	servers, err := r.servers()
	if err != nil {
		return answer{}, err
	}
	q := new(dns.Msg)
	q.SetQuestion(asked.name, asked.kind)
	q.SetEdns0(1232, false)
	faults, silent := []error{}, true
	for _, s := range servers {
		res, err := r.exchange(ctx, q, s)
		if ctx.Err() != nil {
			return answer{}, ctx.Err()
		}
		var a answer
		if err == nil {
			silent = false
			a, err = read(res, asked)
		}
		if err == nil {
			r.good.Store(&s)
			return a, nil
		}
		faults = append(faults, fmt.Errorf("%s: %w", s, err))
	}
	if silent {
		faults = append(faults, errSilent)
	}
	return answer{}, errors.Join(faults...)
}

// servers are those to ask, first the one that has answered last: a dead one costs its time once, not with every question.
func (r *Resolver) servers() (all []string, err error) {
	all = slices.Clone(r.opts.Servers)
	if r.opts.Servers == nil {
		cfg, err := dns.ClientConfigFromFile("/etc/resolv.conf")
		if err != nil {
			return nil, err
		}
		for _, s := range cfg.Servers {
			all = append(all, net.JoinHostPort(s, cfg.Port))
		}
	}
	if good := r.good.Load(); good != nil {
		if i := slices.Index(all, *good); i > 0 {
			all = slices.Concat(all[i:], all[:i])
		}
	}
	return all, nil
}

// exchange asks one server: over UDP, and over TCP when the answer was cut, says so or not, or can't be read.
func (r *Resolver) exchange(ctx context.Context, q *dns.Msg, server string) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, r.opts.timeout)
	defer cancel()
	res, _, err := (&dns.Client{UDPSize: 1232}).ExchangeContext(ctx, q, server)
	if late := errors.Is(err, os.ErrDeadlineExceeded); !late && (err != nil || res.Truncated) {
		res, _, err = (&dns.Client{Net: "tcp"}).ExchangeContext(ctx, q, server)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, context.DeadlineExceeded
	case err != nil:
		return nil, err
	case !answers(res, q):
		return nil, errors.New("an answer to another question")
	case res.Truncated:
		return nil, errors.New("the answer is cut, over TCP as well")
	}
	return res, nil
}

// answers says whether res belongs to q (RFC 5452, section 9.1): the client compares no more than the number. A server that couldn't
// read the question may leave it out, in an error. A question that comes back is no answer.
func answers(res, q *dns.Msg) bool {
	if !res.Response || res.Opcode != q.Opcode {
		return false
	}
	if len(res.Question) == 0 {
		return res.Rcode != dns.RcodeSuccess && res.Rcode != dns.RcodeNameError
	}
	asked, of := q.Question[0], res.Question[0]
	return strings.EqualFold(of.Name, asked.Name) && of.Qtype == asked.Qtype && of.Qclass == asked.Qclass
}

// read takes out of a message what it says to the question: records of the name, or of the one that it is an alias of (RFC 1034,
// section 3.6.2). Others that it holds say nothing about it.
func read(res *dns.Msg, asked question) (a answer, err error) {
	a.ttl = mostTTL
	if res.Rcode != dns.RcodeSuccess && res.Rcode != dns.RcodeNameError {
		return answer{}, errors.New(dns.RcodeToString[res.Rcode])
	}
	name, aliases := asked.name, 0
	for ; ; aliases++ {
		alias := ""
		for _, rr := range res.Answer {
			h := rr.Header()
			if h.Class != dns.ClassINET || !strings.EqualFold(h.Name, name) {
				continue
			}
			if h.Rrtype == asked.kind {
				a.records = append(a.records, rr)
			} else if c, ok := rr.(*dns.CNAME); ok {
				alias = c.Target
			} else {
				continue
			}
			a.ttl = min(a.ttl, time.Duration(h.Ttl)*time.Second)
		}
		if len(a.records) > 0 || alias == "" {
			break
		}
		if name = alias; aliases == mostAliases {
			return answer{}, errors.New("aliases without end")
		}
	}
	if len(a.records) == 0 && res.Rcode == dns.RcodeSuccess && elsewhere(res, aliases > 0) {
		return answer{}, errors.New("the server refers to others")
	}
	return a, nil
}

// elsewhere says whether an answer without a record means "ask others" and not "there is none" (RFC 2308, section 2.2): it names
// other servers, or an alias whose end it doesn't look up.
func elsewhere(res *dns.Msg, alias bool) bool {
	named := false
	for _, rr := range res.Ns {
		switch rr.(type) {
		case *dns.SOA:
			return false
		case *dns.NS:
			named = true
		}
	}
	return named || alias && !res.RecursionAvailable
}
