// Package certfile keeps what a process has read from certificate files up to date with them, so that a renewal needs no
// restart.
//
//	pair, err := certfile.Load("server.pem", "server.key")
//	cfg := &tls.Config{GetCertificate: pair.Get}
//	err = certfile.Follow(ctx, log, map[string]certfile.File{"server": pair})
package certfile

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"
)

// File is something that was read from files.
type File interface {
	// Reload reads them again; changed says that they hold something else than before. On an error the old stays.
	Reload(now time.Time) (changed bool, err error)
}

// Mortal is a File that ends.
type Mortal interface {
	// Life is when what is in use began and when it ends.
	Life() (from, until time.Time)
}

// Every is how often Follow looks at the files.
const Every = 5 * time.Second

// Follow reads the files, by what they are called in the log, again and again until ctx ends. A renewal that is only half
// written is an error at one look and whole at the next.
func Follow(ctx context.Context, log *slog.Logger, files map[string]File) error {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	said := map[string]string{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			look(time.Now(), log, files, said)
		}
	}
}

// look reloads every file and logs what is new: renewals, each fault once, and a certificate that should be renewed by now.
func look(now time.Time, log *slog.Logger, files map[string]File, said map[string]string) {
	for name, f := range files {
		changed, err := f.Reload(now)
		switch {
		case err != nil && said[name] != err.Error():
			log.Error("a certificate file is refused, the old content stays in use", "what", name, "error", err)
			said[name] = err.Error()
		case err == nil:
			delete(said, name)
		}
		if changed {
			log.Info("a certificate file was renewed", "what", name)
		}
		if m, ok := f.(Mortal); ok {
			lastFifth(now, log, name, m, said)
		}
	}
}

// lastFifth gives the alarm, once for each certificate, when less than a fifth of its life is left.
func lastFifth(now time.Time, log *slog.Logger, name string, m Mortal, said map[string]string) {
	from, until := m.Life()
	key, end := name+" ends", until.Format(time.RFC3339)
	if until.Sub(now) < until.Sub(from)/5 && said[key] != end {
		said[key] = end
		log.Error("ALARM: a certificate ends soon and nobody has renewed its file", "what", name, "ends", end)
	}
}

// Pair is a certificate with its key from PEM files. It is safe for concurrent use.
type Pair struct {
	certFile, keyFile string
	current           atomic.Pointer[tls.Certificate]
}

// Load reads the files.
func Load(certFile, keyFile string) (*Pair, error) {
	p := &Pair{certFile: certFile, keyFile: keyFile}
	pair, err := p.read()
	if err != nil {
		return nil, err
	}
	p.current.Store(pair)
	return p, nil
}

func (p *Pair) read() (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(p.certFile, p.keyFile)
	if err != nil {
		return nil, fmt.Errorf("certificate %s with key %s: %w", p.certFile, p.keyFile, err)
	}
	return &pair, nil
}

// Reload implements File. A certificate that is over is refused.
func (p *Pair) Reload(now time.Time) (changed bool, err error) {
	pair, err := p.read()
	if err != nil {
		return false, err
	}
	if slices.EqualFunc(pair.Certificate, p.current.Load().Certificate, slices.Equal) {
		return false, nil
	}
	if now.After(pair.Leaf.NotAfter) {
		return false, errors.New("certificate: " + p.certFile + " ended at " + pair.Leaf.NotAfter.Format(time.RFC3339))
	}
	p.current.Store(pair)
	return true, nil
}

// Life implements Mortal.
func (p *Pair) Life() (from, until time.Time) {
	leaf := p.current.Load().Leaf
	return leaf.NotBefore, leaf.NotAfter
}

// Get is a tls.Config's GetCertificate: this certificate, whatever name is asked for.
func (p *Pair) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.current.Load(), nil }
