package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cellgate/cellgate/apikey"
	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/trust"
)

func (c *controller) FindKey(_ context.Context, q *nodeapi.KeyQuestion) (*nodeapi.KeyAnswer, error) {
	if len(q.Hashes) != 1 || q.Hashes[0] != "sha256:x" {
		return nil, errors.New("another question")
	}
	return &nodeapi.KeyAnswer{Consumer: "acme"}, nil
}

func (c *controller) keys(by *trust.Signer, l *apikey.List) *nodeapi.Down {
	return &nodeapi.Down{Message: &nodeapi.Down_Keys{Keys: &nodeapi.Signed{Envelope: c.sign(by, trust.KindKeys, l)}}}
}

func keyList(at time.Time, consumer string) *apikey.List {
	return &apikey.List{Form: apikey.Form, At: at, Consumers: []apikey.Consumer{{ID: consumer, Hashes: []string{apikey.SHA256.Of([]byte(consumer)).String()}}}}
}

// told is a node that remembers the list it was given last.
func (w *world) told(dir string) (*proxy, func() string) {
	list := &atomic.Pointer[apikey.List]{}
	n := w.node(dir, func(o *Options) {
		o.Issue = func(l *apikey.List) error {
			if l.Consumers[0].ID == "unusable" {
				return errors.New("unusable")
			}
			list.Store(l)
			return nil
		}
	})
	return n, func() string {
		if l := list.Load(); l != nil {
			return l.Consumers[0].ID
		}
		return ""
	}
}

func TestIssuedKeysReachTheNodeAndOutliveItsRestart(t *testing.T) {
	w, dir, now := newWorld(t), t.TempDir(), time.Now()
	w.ctl.start(t)
	n, has := w.told(dir)
	w.ctl.post(w.ctl.keys(w.ctl.signer, keyList(now, "acme")))
	w.eventually("the list", func() bool { return has() == "acme" })
	w.ctl.post(w.ctl.keys(w.ctl.signer, keyList(now.Add(time.Second), "newer")))
	w.eventually("a newer list", func() bool { return has() == "newer" })
	for _, bad := range []*nodeapi.Down{
		w.ctl.keys(w.ctl.signer, keyList(now, "older")), w.ctl.keys(w.signer(trust.RoleProxy, "eu-west/a/2"), keyList(now.Add(time.Hour), "by a proxy")),
		w.ctl.keys(w.endedSigner(), keyList(now.Add(time.Hour), "signed too late")), w.ctl.keys(w.ctl.signer, keyList(now.Add(time.Hour), "unusable")),
		w.ctl.keys(w.ctl.signer, &apikey.List{Form: 99, At: now.Add(time.Hour)}), {Message: &nodeapi.Down_Keys{}},
	} {
		w.ctl.post(bad)
		w.ctl.post(w.ctl.keys(w.ctl.signer, keyList(now.Add(time.Second), "newer")))
		time.Sleep(20 * time.Millisecond)
		if has() != "newer" {
			t.Errorf("%s is in force", has())
		}
	}
	if consumer, err := n.FindKey(t.Context(), []string{"sha256:x"}); err != nil || consumer != "acme" || !n.Connected() {
		t.Errorf("the controller says %q, %v", consumer, err)
	}
	w.eventually("the file", func() bool { _, err := os.Stat(filepath.Join(dir, "keys.json")); return err == nil })
	n.stop()
	w.ctl.addr = ""
	n, has = w.told(dir)
	if has() != "newer" || n.hello().KeysNumber != keyList(now.Add(time.Second), "").Number() {
		t.Errorf("after a restart without a controller: %q, number %d", has(), n.hello().KeysNumber)
	}
	if _, err := n.FindKey(t.Context(), []string{"sha256:x"}); err == nil || n.Connected() {
		t.Error("nobody is attached, and somebody answers")
	}
	n.stop()
	must(t, os.WriteFile(filepath.Join(dir, "keys.json"), []byte("{"), 0o600))
	if _, has = w.told(dir); has() != "" {
		t.Errorf("a damaged file says %q", has())
	}
}
