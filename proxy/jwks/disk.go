package jwks

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"time"

	"github.com/cellgate/cellgate/internal/durable"
	"github.com/cellgate/cellgate/proxy/auth"
)

// stored is the form of one file.
type stored struct {
	Form     int             `json:"form"`
	URL      string          `json:"url"`
	Fetched  time.Time       `json:"fetched"`
	Document json.RawMessage `json:"document"`
}

const (
	storedForm = 1
	maxFiles   = 2 * maxProviders // the oldest go beyond it
)

func (p *Pool) file(url string) string {
	return filepath.Join(p.opt.Dir, fmt.Sprintf("%x.json", sha256.Sum256([]byte(url))))
}

func (p *Pool) save(url string, doc []byte) error {
	if p.opt.Dir == "" {
		return nil
	}
	if err := os.MkdirAll(p.opt.Dir, 0o700); err != nil {
		return fmt.Errorf("jwks: %w", err)
	}
	raw, err := json.Marshal(stored{Form: storedForm, URL: url, Fetched: time.Now().UTC(), Document: doc})
	if err != nil {
		return fmt.Errorf("jwks: %w", err)
	}
	if err := durable.Write(p.file(url), raw); err != nil {
		return err
	}
	p.prune()
	return nil
}

// load reads the provider's keys from disk; whatever is wrong with the file counts as no keys and is logged.
func (p *Pool) load(url string) *auth.Keys {
	if p.opt.Dir == "" {
		return nil
	}
	raw, err := durable.Read(p.file(url))
	if os.IsNotExist(err) {
		return nil
	}
	var s stored
	if err == nil {
		err = json.Unmarshal(raw, &s)
	}
	if err == nil && (s.Form != storedForm || s.URL != url) {
		err = fmt.Errorf("form %d of %q", s.Form, s.URL)
	}
	var keys *auth.Keys
	if err == nil {
		keys, _, err = auth.ParseKeys(s.Document)
	}
	if err != nil {
		p.opt.Log.Warn("stored key set not usable", "url", url, "error", err)
		return nil
	}
	p.opt.Log.Info("key set read from disk", "url", url, "keys", keys.Len(), "fetched", s.Fetched)
	return keys
}

func (p *Pool) prune() {
	files, err := filepath.Glob(filepath.Join(p.opt.Dir, "*.json"))
	if err != nil || len(files) <= maxFiles {
		return
	}
	age := func(f string) time.Time {
		info, err := os.Stat(f)
		if err != nil {
			return time.Time{}
		}
		return info.ModTime()
	}
	sort.Slice(files, func(i, j int) bool { return age(files[i]).Before(age(files[j])) })
	for _, f := range files[:len(files)-maxFiles] {
		_ = os.Remove(f) // tried again with the next set that is stored
	}
}
