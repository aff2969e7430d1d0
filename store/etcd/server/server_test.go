package server

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

// etcd says the same of a full disk and of a damaged log.
func TestAFullDiskIsNotTakenForDamage(t *testing.T) {
	c := Config{Dir: "/data/eu-west", Cluster: map[string]netip.AddrPort{"a": {}, "b": {}}}
	wal := errors.New("its wal or database can't be read: failed to create WAL")
	for says, got := range map[string]string{
		"the disk of /data/eu-west is full": c.remedy(wal, true),
		"is damaged: put a backup":          c.remedy(wal, false),
		"is damaged: move it away":          Config{}.remedy(wal, false),
		"":                                  c.remedy(errors.New("address in use"), true),
	} {
		if !strings.Contains(got, says) || says == "" && got != "" {
			t.Errorf("%q, want %q", got, says)
		}
	}
}
