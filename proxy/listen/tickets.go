package listen

import (
	"bytes"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	// ticketEpoch is how long a key seals tickets. It opens them for an epoch more, and for one ahead, since clocks differ: 24 h in all.
	ticketEpoch = 8 * time.Hour
	maxSecrets  = 4
)

// Tickets gives TLS configurations the keys that session tickets are sealed with, so that a client of one node of a cell goes on with
// its session at another. The keys are derived (HKDF, RFC 5869) from secrets that the nodes of a cell share, for the cell, the purpose
// of the configuration and the epoch, so nodes agree on them without a word, and no key outlives a day.
//
// Whoever knows a secret can open the sessions that were begun with its tickets, and can begin sessions in the name of any client's
// certificate. So no two cells share one, and what the secret was read from is the node's alone.
type Tickets struct {
	file, cell string

	mu      sync.Mutex
	secrets [][]byte
	epoch   int64
	configs map[string]*tls.Config // by their purpose
}

var errTickets = errors.New("must be 1 to 4 lines, each 32 random bytes in base64 (openssl rand -base64 32)")

// LoadTickets reads the secrets of a cell. The first one seals.
func LoadTickets(file, cell string) (*Tickets, error) {
	t := &Tickets{file: file, cell: cell, configs: map[string]*tls.Config{}}
	_, err := t.Reload(time.Now())
	return t, err
}

// Keep keeps the keys of a configuration up to date, as long as Reload is called. Nil does nothing: the configuration has keys of its
// own then, which no other process knows.
func (t *Tickets) Keep(cfg *tls.Config, purpose string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.configs[purpose] = cfg
	t.set(cfg, purpose)
}

// Reload reads the secrets again and turns to the keys of the time. It implements certfile.File.
func (t *Tickets) Reload(now time.Time) (changed bool, err error) {
	secrets, err := readSecrets(t.file)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		changed = !slices.EqualFunc(secrets, t.secrets, bytes.Equal)
		t.secrets = secrets
	}
	if epoch := now.Unix() / int64(ticketEpoch/time.Second); changed || epoch != t.epoch {
		t.epoch = epoch
		for purpose, cfg := range t.configs {
			t.set(cfg, purpose)
		}
	}
	return changed, err
}

// set gives a configuration its keys. The first one seals; all open.
func (t *Tickets) set(cfg *tls.Config, purpose string) {
	keys := make([][32]byte, 0, 3*len(t.secrets))
	for _, epoch := range []int64{t.epoch, t.epoch - 1, t.epoch + 1} {
		for _, secret := range t.secrets {
			keys = append(keys, ticketKey(secret, t.cell, purpose, epoch))
		}
	}
	cfg.SetSessionTicketKeys(keys)
}

func ticketKey(secret []byte, cell, purpose string, epoch int64) (key [32]byte) {
	info := fmt.Sprintf("cellgate session tickets 1 %q %q %s", cell, purpose, strconv.FormatInt(epoch, 10))
	b, err := hkdf.Key(sha256.New, secret, nil, info, len(key))
	if err != nil {
		panic(err) // only for a length that is too large
	}
	return [32]byte(b)
}

// readSecrets reads the lines of a file. Its errors hold nothing of them.
func readSecrets(file string) (all [][]byte, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("ticket secrets: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, 4<<10))
	if err != nil {
		return nil, fmt.Errorf("ticket secrets: %w", err)
	}
	for line := range bytes.Lines(raw) {
		secret, err := base64.StdEncoding.Strict().DecodeString(string(bytes.TrimSpace(line)))
		if err != nil || len(secret) != 32 || len(all) == maxSecrets {
			return nil, fmt.Errorf("ticket secrets: %s: %w", file, errTickets)
		}
		all = append(all, secret)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("ticket secrets: %s: %w", file, errTickets)
	}
	return all, nil
}
